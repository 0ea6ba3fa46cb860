"""FlexAttention as the framework sees it: flash attention's inputs and reference, torch's kernel."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch

from autotune.errors import UsageError
from autotune.kernels.flash_attention.kernel import FlashAttention, Inputs
from autotune.kernels.flex_attention.call import BoundFlexAttention
from autotune.kernels.flex_attention.compiled import attend
from autotune.search_spaces.flex_attention import kernel_options
from autotune.shape import AttentionShape
from autotune.space import Config

MAX_CHECKED_PAIRS: Final = 2**33  # of a query and a key: a reference of 8 GFLOP times the width of a head
MIN_HEAD_PAIRS: Final = 2**21  # what a head costs at least, in calls of eager torch


class FlexAttention(FlashAttention):
    """Implements ``autotune.operation.Kernel`` for ``AttentionShape``, forward only."""

    def check_shapes(self, shape: AttentionShape) -> tuple[AttentionShape, ...]:
        """The shape itself: torch compiles for exact lengths, so no smaller problem would run the code that is timed
        and served, and each would cost some seconds of compiling a config.

        Where its reference took too long it is one KV head of one sequence, compiled for that alone; finalists are
        checked on the shape itself.
        """
        pairs = shape.batch * shape.heads * max(shape.seq_q * shape.seq_kv, MIN_HEAD_PAIRS)
        return (shape if pairs <= MAX_CHECKED_PAIRS else replace(shape, batch=1, heads=shape.group, kv_heads=1),)

    def launch(self, config: Config, inputs: Inputs, out: tuple[torch.Tensor, ...]) -> None:
        """Torch allocates its output, and ``out`` becomes that: a copy would be timed that no user makes."""
        result = attend(inputs, kernel_options(config))
        out[0].set_(result.untyped_storage(), result.storage_offset(), result.shape, result.stride())

    def warmup(self, config: Config, shape: AttentionShape) -> Any:
        """Nothing compiles ahead.

        Raises:
            UsageError: always.
        """
        raise UsageError("torch compiles flex_attention where it is launched: only the GPU tells whether it fits")

    def bind(self, config: Config, shape: AttentionShape) -> Callable[..., Any]:
        return BoundFlexAttention(config, shape)


KERNEL: Final = FlexAttention()
