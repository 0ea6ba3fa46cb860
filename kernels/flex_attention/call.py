"""What a user's call does: checks that tensors fit, and calls what torch compiled for them."""

import torch

from autotune.errors import InputMismatchError
from autotune.kernels.flash_attention.call import check_call
from autotune.kernels.flash_attention.kernel import Inputs
from autotune.kernels.flex_attention.compiled import attend
from autotune.kernels.tensors import check_softcap, describe, refuse_options
from autotune.search_spaces.flex_attention import kernel_options
from autotune.shape import AttentionShape
from autotune.space import Config


class BoundFlexAttention:
    """FlexAttention over one shape with one config: what ``get_kernel(..., operation="flex_attention")`` hands out.

    The first call compiles for some seconds, and so does one with another ``scale`` or ``softcap``, which torch has in
    its code.

    Example (on a GPU):
        >>> shape = AttentionShape(batch=2, heads=16, seq_q=1024, head_dim=128, causal=True)
        >>> kernel = autotune.get_kernel(shape, operation="flex_attention")
        >>> out = kernel(q, k, v)  # all [2, 1024, 16, 128], bfloat16
    """

    def __init__(self, config: Config, shape: AttentionShape) -> None:
        self._shape = shape
        self._options = kernel_options(config)
        self._dtype = getattr(torch, shape.dtype)
        self._expected = {
            "q": (shape.batch, shape.seq_q, shape.heads, shape.head_dim),
            "k": (shape.batch, shape.seq_kv, shape.kv_heads, shape.head_dim),
            "v": (shape.batch, shape.seq_kv, shape.kv_heads, shape.head_dim_v),
        }

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        **unknown: object,
    ) -> torch.Tensor:
        """The output ``[B, S_q, H, D_v]`` in the inputs' dtype; ``scale`` is ``head_dim ** -0.5`` by default.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape.
            NotDifferentiableError: gradients are required.
        """
        if unknown:
            refuse_options(self.__call__, self._shape, unknown)
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            is_tensor = isinstance(tensor, torch.Tensor)
            if not is_tensor or tuple(tensor.shape) != self._expected[name] or tensor.dtype != self._dtype:
                raise InputMismatchError(
                    f"{name} is {describe(tensor)}; this kernel takes {self._expected[name]} {self._shape.dtype}"
                )
        check_call(q, k, v, scale=scale, softcap=softcap)
        check_softcap(softcap, self._shape.softcap)
        scale = self._shape.head_dim**-0.5 if scale is None else scale
        inputs = Inputs(q, k, v, causal=self._shape.causal, window=self._shape.window, softcap=softcap, scale=scale)
        return attend(inputs, self._options)
