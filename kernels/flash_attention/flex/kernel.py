"""FlexAttention as the framework sees it: torch's kernel behind our contract."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.errors import UsageError
from autotune.kernels.flash_attention.definition import Inputs
from autotune.kernels.flash_attention.flex.call import BoundFlexAttention
from autotune.kernels.flash_attention.flex.compiled import attend
from autotune.search_spaces.flash_attention.flex import kernel_options
from autotune.shape import AttentionShape
from autotune.space import Config


class FlexAttention:
    """Implements ``autotune.implementation.Kernel`` for ``AttentionShape``, forward only."""

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        """Torch allocates its outputs, and ``outputs`` become those: no user makes the copy that would be timed."""
        with_lse = len(outputs) > 1
        results = attend(inputs, kernel_options(config), with_lse=with_lse)
        for output, result in zip(outputs, results if with_lse else (results,), strict=True):
            output.set_(result.untyped_storage(), result.storage_offset(), result.shape, result.stride())

    def warmup(self, config: Config, shape: AttentionShape, *, every_output: bool = False) -> Sequence[Any]:
        """Refuse to compile ahead.

        Raises:
            UsageError: always.
        """
        raise UsageError("torch compiles FlexAttention where it is launched: only the GPU tells whether it fits")

    def bind(self, config: Config, shape: AttentionShape) -> Callable[..., Any]:
        return BoundFlexAttention(config, shape)


KERNEL: Final = FlexAttention()
