"""FlexAttention as the framework sees it: launch and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.errors import UnsupportedCallError, UsageError
from autotune.kernels.flash_attention.checks import BoundDense
from autotune.kernels.flash_attention.definition import Inputs
from autotune.kernels.flash_attention.flex.compiled import attend
from autotune.search_spaces.flash_attention.flex import kernel_options
from autotune.shape import AttentionShape
from autotune.space import Config


class BoundFlexAttention(BoundDense):
    """FlexAttention over one shape with one config: what ``get_kernel(..., among=("flex",))`` hands out.

    The first call compiles for some seconds, and so does one with another ``scale`` or ``softcap``, which torch has in
    its code.

    Example (on a GPU):
        >>> shape = AttentionShape(batch=2, heads=16, seq_q=1024, head_dim=128, causal=True)
        >>> kernel = autotune.get_kernel(shape, among=("flex",))
        >>> out = kernel(q, k, v)  # all [2, 1024, 16, 128], bfloat16
    """

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
        if out is not None:
            raise UnsupportedCallError("FlexAttention allocates its output; it cannot write into out")
        shape = self._shape
        inputs = Inputs(q, k, v, causal=shape.causal, window=shape.window, softcap=softcap, scale=scale)
        return attend(inputs, self._options, with_lse=return_lse)  # type: ignore[no-any-return]


class FlexAttention:
    """Implements ``autotune.implementation.Kernel`` for ``AttentionShape``, forward only."""

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        """Let ``outputs`` become what torch allocates: no user makes the copy that would be timed."""
        with_lse = len(outputs) > 1
        results = attend(inputs, kernel_options(config), with_lse=with_lse)
        for output, result in zip(outputs, results if with_lse else (results,), strict=True):
            output.set_(result.untyped_storage(), result.storage_offset(), result.shape, result.stride())

    def warmup(self, config: Config, shape: AttentionShape, *, every_output: bool = False) -> Sequence[Any]:
        """Raise UsageError: torch does not compile ahead."""
        raise UsageError("torch compiles FlexAttention where it is launched: only the GPU tells whether it fits")

    def bind(self, config: Config, shape: AttentionShape) -> Callable[..., Any]:
        return BoundFlexAttention(shape, kernel_options(config))


KERNEL: Final = FlexAttention()
