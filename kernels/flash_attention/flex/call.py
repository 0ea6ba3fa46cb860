"""Calls of users: check that tensors fit, and call the code that torch compiled for them."""

import torch

from autotune.kernels.flash_attention.checks import check_fit
from autotune.kernels.flash_attention.definition import Inputs
from autotune.kernels.flash_attention.flex.compiled import attend
from autotune.kernels.tensors import refuse_options
from autotune.search_spaces.flash_attention.flex import kernel_options
from autotune.shape import AttentionShape
from autotune.space import Config


class BoundFlexAttention:
    """FlexAttention over one shape with one config: what ``get_kernel(..., among=("flex",))`` hands out.

    The first call compiles for some seconds, and so does one with another ``scale`` or ``softcap``, which torch has in
    its code.

    Example (on a GPU):
        >>> shape = AttentionShape(batch=2, heads=16, seq_q=1024, head_dim=128, causal=True)
        >>> kernel = autotune.get_kernel(shape, among=("flex",))
        >>> out = kernel(q, k, v)  # all [2, 1024, 16, 128], bfloat16
    """

    def __init__(self, config: Config, shape: AttentionShape) -> None:
        self._shape = shape
        self._options = kernel_options(config)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
        **unknown: object,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """The output ``[B, S_q, H, D_v]`` in the inputs' dtype; with ``return_lse`` also the natural log-sum-exp of the
        scaled scores, fp32 ``[B, H, S_q]``. ``scale`` is ``head_dim ** -0.5`` by default.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape.
            NotDifferentiableError: gradients are required.
        """
        if unknown:
            refuse_options(self.__call__, self._shape, unknown)
        check_fit(self._shape, q, k, v, scale=scale, softcap=softcap)
        scale = self._shape.head_dim**-0.5 if scale is None else scale
        inputs = Inputs(q, k, v, causal=self._shape.causal, window=self._shape.window, softcap=softcap, scale=scale)
        found: torch.Tensor | tuple[torch.Tensor, torch.Tensor] = attend(inputs, self._options, with_lse=return_lse)
        return found
