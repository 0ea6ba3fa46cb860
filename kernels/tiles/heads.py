# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Numbers of each query head: sinks, and the slopes of ALiBi (Press et al., arXiv 2108.12409)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.softmax import LOG2_E


class PerHead(NamedTuple):
    """Pointers to a number a head, or None."""

    sinks: Any
    slopes: Any


@triton.jit
def load_slopes(slopes, heads, is_row):
    """Load the slopes of rows of these heads, in base 2."""
    return tl.load(slopes + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
