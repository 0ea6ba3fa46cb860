# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The query heads of rows: their sinks and slopes of ALiBi (Press et al., arXiv 2108.12409), and their output."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.rows import offset
from autotune.kernels.tiles.softmax import LOG2_E, end_rows_with_sinks


class PerHead(NamedTuple):
    """Pointers to a number a head, or None."""

    sinks: Any
    slopes: Any


class Outputs(NamedTuple):
    """``out [queries, H, WIDTH]``, and ``log_sum_exp`` fp32 ``[queries, H]`` or None."""

    out: Any
    log_sum_exp: Any


@triton.jit
def load_slopes(slopes, heads, is_row):
    """Load the slopes of rows of these heads, in base 2."""
    return tl.load(slopes + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E


@triton.jit
def store_outputs(
    outputs, sinks, state, queries, heads, kv_heads, is_row,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    """Finish rows, whose keys were all seen, and store them as these heads of these queries, GROUP for each KV head."""
    if sinks is not None:
        sinks = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32)
    factor, log_sum_exp = end_rows_with_sinks(state.row_max, state.row_sum, sinks)
    indices = offset(queries, kv_heads * GROUP) + heads
    columns = tl.arange(0, BLOCK_WIDTH)
    pointers = outputs.out + offset(indices[:, None], WIDTH) + columns[None, :]
    values = (state.accumulator * factor[:, None]).to(outputs.out.dtype.element_ty)
    tl.store(pointers, values, mask=is_row[:, None] & (columns < WIDTH)[None, :])
    if outputs.log_sum_exp is not None:
        tl.store(outputs.log_sum_exp + indices, log_sum_exp, mask=is_row)
