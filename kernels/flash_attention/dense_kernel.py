"""Dense attention by a kernel of ours, or by several: as the framework sees it, and as users call it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from autotune.kernels.flash_attention.checks import BoundDense
from autotune.kernels.flash_attention.definition import SOFTCAP, Inputs, meta_tensors
from autotune.kernels.flash_attention.repeat import NAMES, repeat_of
from autotune.kernels.known_calls import KnownCalls, RepeatOf, Result
from autotune.kernels.tensors import launch_options, on_device_of, refuse_options
from autotune.shape import AttentionShape
from autotune.space import Config


class BoundAttention(BoundDense):
    """Attention over one shape with one config: what ``get_kernel`` hands out.

    Example (on a GPU):
        >>> kernel = autotune.get_kernel(AttentionShape(batch=2, heads=16, seq_q=1024, head_dim=128, causal=True))
        >>> out = kernel(q, k, v)  # all [2, 1024, 16, 128], bfloat16
    """

    def __init__(self, kernel: "DenseKernel", shape: AttentionShape, options: dict[str, Any]) -> None:
        super().__init__(shape, options)
        self._kernel = kernel
        self._calls = KnownCalls(NAMES, self._compute, kernel.repeat_of)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
        out: torch.Tensor | None = None,
        **unknown: object,
    ) -> Result:
        """Compute as ``BoundDense`` says. A call whose signature is known is not checked again."""
        if unknown:
            refuse_options(self.__call__, self._shape, unknown)
        return self._calls.call((q, k, v), (scale, softcap, return_lse), out)

    def _compute(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float | None,
        softcap: float | None,
        return_lse: bool,
        out: torch.Tensor | None,
    ) -> Result:
        return super().__call__(q, k, v, scale=scale, softcap=softcap, return_lse=return_lse, out=out)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        softcap: float | None,
        return_lse: bool,
        out: torch.Tensor | None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        shape = self._shape
        options: dict[str, Any] = {"scale": scale, "softcap": softcap, "options": self._options}
        with on_device_of(q):
            self._kernel.prepare(self._options, q)
            if out is None:
                out = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
            else:
                torch.autograd.graph.increment_version(out)  # written behind torch's back
            sizes = (shape.batch, shape.heads, shape.seq_q)
            lse = torch.empty(sizes, dtype=torch.float32, device=q.device) if return_lse else None
            self._kernel.launch_checked(q, k, v, out, lse, causal=shape.causal, window=shape.window, **options)
        return out if lse is None else (out, lse)


class DenseKernel:
    """Implements ``autotune.implementation.Kernel`` for ``AttentionShape``."""

    def __init__(
        self,
        launch: Callable[..., Any],
        prepare: Callable[[dict[str, Any], torch.Tensor], None],
        repeat_of: RepeatOf = repeat_of,
    ) -> None:
        """Take what launches over checked tensors, what is called before, and what repeats a call of several launches.

        ``launch`` takes the queries, keys, values, output and log-sum-exp or None, the features of the problem, a
        config as ``options`` and ``compile_only``, with which it returns the compiled kernel of meta tensors, or a
        tuple of several. ``prepare`` refuses a device, or makes it ready; it takes the options and the queries.
        ``repeat_of`` is that of ``KnownCalls``.
        """
        self.launch_checked = launch
        self.prepare = prepare
        self.repeat_of = repeat_of

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        lse = outputs[1] if len(outputs) > 1 else None
        features = {name: getattr(inputs, name) for name in ("causal", "window", "softcap", "scale")}
        self.launch_checked(inputs.q, inputs.k, inputs.v, outputs[0], lse, **features, options=launch_options(config))

    def warmup(self, config: Config, shape: AttentionShape, *, every_output: bool = False) -> Sequence[Any]:
        """Compile over tensors of the meta device; strides are those of contiguous tensors."""
        q, k, v, out, lse = meta_tensors(shape)
        compiled = self.launch_checked(
            q,
            k,
            v,
            out,
            lse if every_output else None,
            causal=shape.causal,
            window=shape.window,
            softcap=SOFTCAP if shape.softcap else None,
            scale=shape.head_dim**-0.5,
            options=launch_options(config),
            compile_only=True,
        )
        return compiled if isinstance(compiled, tuple) else (compiled,)

    def bind(self, config: Config, shape: AttentionShape) -> Callable[..., Any]:
        return BoundAttention(self, shape, launch_options(config))
