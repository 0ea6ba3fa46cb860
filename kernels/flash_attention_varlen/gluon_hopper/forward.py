# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Attention forward over packed sequences in Gluon for Hopper: a warp copies in, groups of four compute 64 rows each.

Algorithm: FlashAttention-3 (Shah et al., arXiv 2407.08608, algorithms 1 and 2), by the consumers of dense attention
(``flash_attention.gluon_hopper``); every tile is of one sequence, and has its numbers of queries and of keys.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.flash_attention.gluon_hopper.forward import PRODUCER_REGISTERS, ROWS, begin, end_rows, fold, skip
from autotune.kernels.flash_attention.gluon_hopper.rings import begin_ring, hand_back, take
from autotune.kernels.flash_attention.gluon_hopper.schedule import block_bounds, block_bounds_of
from autotune.kernels.flash_attention.gluon_hopper.turns import end_turn
from autotune.kernels.flash_attention.gluon_hopper.weights import as_factor, shift_of, visible_keys
from autotune.kernels.flash_attention_varlen.gluon_hopper.padded_rows import CLEARING_WARPS, clear_padding
from autotune.kernels.flash_attention_varlen.gluon_hopper.ragged import SequenceRows, as_dense, fill_rows, place_of
from autotune.kernels.flash_attention_varlen.gluon_hopper.tile_table import count_tiles, read_tile
from autotune.kernels.gluon import (
    copy_out,
    fence_async_shared,
    product_layout,
    view_as,
    wait_copies_out,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from autotune.kernels.tiles.masks import Bounds
from autotune.kernels.tiles.softmax import LOG2_E

SMALLEST_FACTOR = gl.constexpr(2.0**-120)  # of scores: what is hidden stays -inf when it is multiplied

_NUMBERS = ["heads", "group", "window"]  # no binary of its own for any of them
_POINTERS = ["log_sum_exp", "sinks", "table"]


class PackedFeatures(NamedTuple):
    """The features of a problem that a binary is compiled for; ``has_used`` where not all packed queries need count."""

    causal: bool
    window: bool
    softcap: bool
    key_parts: int  # of the columns of queries and keys, each a product of its own
    has_used: bool
    heads_together: bool
    padded: bool


class PackedOperands(NamedTuple):
    """Tensor descriptors of ``[T, H, D]``, ragged, in tiles of one head; pointers to the outputs, sinks and tiles."""

    q: Any
    k: Any
    v: Any
    out: Any
    log_sum_exp: Any
    sinks: Any
    table: Any


class HeadScales(NamedTuple):
    """Pointers to the scales of quantized keys and values, fp32, one a KV head, and their strides.

    Keys have the sign of their scale already.
    """

    keys: Any
    vals: Any  # tuples of Triton have ``values`` of their own
    key_stride: Any
    value_stride: Any


class Call(NamedTuple):
    """The numbers of a call: no binary of its own for any of them."""

    heads: Any
    group: Any
    window: Any
    score_scale: Any
    softcap: Any
    scales: Any


class SequenceNumbers(NamedTuple):
    """The numbers of a tile's sequence and of its call, as the functions of dense attention read them."""

    seq_q: Any
    seq_kv: Any
    window: Any
    score_scale: Any
    softcap: Any


@gluon.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=[*_POINTERS, *_NUMBERS])
def varlen_attention_forward(
    q, k, v, out, log_sum_exp, sinks, table, padded, scales, heads, group, window, score_scale, softcap,
    FEATURES: gl.constexpr, SCHEDULE: gl.constexpr,
):  # fmt: skip
    """Compute ``out = softmax(q k^T) v`` of each sequence; every program takes each N-th tile of the table.

    ``q``, ``k``, ``v`` and ``out`` are ragged descriptors of ``[T, H, D]``, ``log_sum_exp`` is fp32 ``[T, H]`` or None,
    ``sinks`` ``[H]`` or None. ``padded`` is the output of a padded batch, whose other rows are cleared, or
    None; ``scales`` are those of keys and values, or None.
    """
    CONSUMERS: gl.constexpr = SCHEDULE.consumers
    SLOTS: gl.constexpr = SCHEDULE.slots
    REGISTERS: gl.constexpr = SCHEDULE.registers
    tensors = PackedOperands(q, k, v, out, log_sum_exp, sinks, table)
    call = Call(heads, group, window, score_scale, softcap, scales)
    Q_SLOTS: gl.constexpr = CONSUMERS * SCHEDULE.query_slots
    PARTS: gl.constexpr = FEATURES.key_parts
    q_ring, k_ring = begin_ring(q, PARTS, Q_SLOTS, 1), begin_ring(k, PARTS, SLOTS, CONSUMERS)
    rings = (q_ring, k_ring, begin_ring(v, 1, SLOTS, CONSUMERS))
    OUT_SLOTS: gl.constexpr = Q_SLOTS * PARTS * q.block_shape[4] // out.block_shape[4]
    if SCHEDULE.out_in_queries:
        out_tiles = view_as(q_ring.tiles, out.dtype, [OUT_SLOTS] + out.block_shape, out.layout)  # noqa: RUF005 (Triton's language)
    else:
        out_tiles = gl.allocate_shared_memory(out.dtype, [CONSUMERS] + out.block_shape, out.layout)  # noqa: RUF005
    if not FEATURES.padded and CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consume_packed, (0, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (produce_packed, (rings, tensors, call, FEATURES, SCHEDULE)),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )
    elif not FEATURES.padded and CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume_packed, (0, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (consume_packed, (1, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (produce_packed, (rings, tensors, call, FEATURES, SCHEDULE)),
            ],
            [4, 1],
            [REGISTERS, PRODUCER_REGISTERS],
        )
    elif not FEATURES.padded and CONSUMERS == 3:
        gl.warp_specialize(
            [
                (consume_packed, (0, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (consume_packed, (1, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (consume_packed, (2, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (produce_packed, (rings, tensors, call, FEATURES, SCHEDULE)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, PRODUCER_REGISTERS],
        )
    elif CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consume_packed, (0, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (produce_packed, (rings, tensors, call, FEATURES, SCHEDULE)),
                (clear_padding, (padded, log_sum_exp, sinks, heads)),
            ],
            [1, CLEARING_WARPS],
            [PRODUCER_REGISTERS, PRODUCER_REGISTERS],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume_packed, (0, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (consume_packed, (1, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (produce_packed, (rings, tensors, call, FEATURES, SCHEDULE)),
                (clear_padding, (padded, log_sum_exp, sinks, heads)),
            ],
            [4, 1, CLEARING_WARPS],
            [REGISTERS, PRODUCER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consume_packed, (0, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (consume_packed, (1, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (consume_packed, (2, rings, out_tiles, tensors, call, FEATURES, SCHEDULE)),
                (produce_packed, (rings, tensors, call, FEATURES, SCHEDULE)),
                (clear_padding, (padded, log_sum_exp, sinks, heads)),
            ],
            [4, 4, 1, CLEARING_WARPS],
            [REGISTERS, REGISTERS, PRODUCER_REGISTERS, PRODUCER_REGISTERS],
        )


@gluon.jit
def numbers_of(tile, call):
    """Return the numbers of a tile."""
    score_scale = call.score_scale
    if call.scales is not None:
        key_scale = gl.abs(gl.load(call.scales.keys + tile.head // call.group * call.scales.key_stride))
        score_scale = at_least(score_scale * key_scale, SMALLEST_FACTOR)
    return SequenceNumbers(tile.used, tile.length, call.window, score_scale, call.softcap)


@gluon.jit
def at_least(value, least):
    """Return a number, or the least that it may be; NaN stays NaN."""
    return gl.where(value < least, least, value)


@gluon.jit
def tile_bounds(tile, numbers, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr, FEATURES: gl.constexpr):
    """Return the bounds of the keys that a tile sees, in blocks, as ``block_bounds`` does.

    Of a padded batch ``seq_q`` is no number of queries: where a window ends is found from those that the tile has.
    """
    bounds = block_bounds(tile.row, numbers, BLOCK_Q, BLOCK_K, FEATURES)
    if FEATURES.padded and FEATURES.window:
        last_row = gl.minimum(tile.row + BLOCK_Q, tile.count) - 1
        diagonal = numbers.seq_kv - numbers.seq_q
        first = gl.maximum(0, last_row + diagonal - numbers.window + 1)
        full_low = gl.minimum(gl.maximum(gl.cdiv(first, BLOCK_K), bounds.low), bounds.high)
        bounds = Bounds(bounds.low, full_low, gl.maximum(bounds.full_high, full_low), bounds.high)
    return bounds


@gluon.jit
def produce_packed(rings, tensors, call, FEATURES: gl.constexpr, SCHEDULE: gl.constexpr):
    """Copy the queries of each tile, and the keys and values that it sees, into the rings."""
    q_ring, k_ring, v_ring = rings
    CONSUMERS: gl.constexpr = SCHEDULE.consumers
    BLOCK_Q: gl.constexpr = ROWS * CONSUMERS
    BLOCK_K: gl.constexpr = SCHEDULE.block_k
    SLOTS: gl.constexpr = SCHEDULE.slots
    Q_SLOTS: gl.constexpr = CONSUMERS * SCHEDULE.query_slots
    PARTS: gl.constexpr = FEATURES.key_parts
    q_turn = 0
    turn = 0
    tiles = count_tiles(tensors.table, call.heads)
    for number in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile = read_tile(tensors.table, number, tiles, call.heads, FEATURES.heads_together, FEATURES.padded)
        bounds = tile_bounds(tile, numbers_of(tile, call), BLOCK_Q, BLOCK_K, FEATURES)
        queries, keys = SequenceRows(tile.begin, tile.count), SequenceRows(tile.first_key, tile.length)
        values = SequenceRows(tile.first_value, tile.length)
        for consumer in gl.static_range(CONSUMERS):
            row = tile.row + consumer * ROWS
            fill_rows(q_ring, tensors.q, queries, row, tile.head, q_turn + consumer, PARTS, Q_SLOTS)
        q_turn += CONSUMERS
        kv_head = tile.head // call.group
        for step in range(bounds.low, bounds.high):
            key = (bounds.high - 1 - (step - bounds.low)) * BLOCK_K
            fill_rows(k_ring, tensors.k, keys, key, kv_head, turn, PARTS, SLOTS)
            fill_rows(v_ring, tensors.v, values, key, kv_head, turn, 1, SLOTS)
            turn += 1


@gluon.jit
def consume_packed(
    CONSUMER: gl.constexpr, rings, out_tiles, tensors, call, FEATURES: gl.constexpr, SCHEDULE: gl.constexpr
):  # fmt: skip
    """Compute the rows of one consumer, of every tile."""
    q_ring = as_dense(rings[0], tensors.q)
    k_ring = as_dense(rings[1], tensors.k)
    v_ring = as_dense(rings[2], tensors.v)
    out = tensors.out
    CONSUMERS: gl.constexpr = SCHEDULE.consumers
    BLOCK_Q: gl.constexpr = ROWS * CONSUMERS
    BLOCK_K: gl.constexpr = SCHEDULE.block_k
    SLOTS: gl.constexpr = SCHEDULE.slots
    Q_SLOTS: gl.constexpr = CONSUMERS * SCHEDULE.query_slots
    PARTS: gl.constexpr = FEATURES.key_parts
    WIDTH: gl.constexpr = out.block_shape[4]
    KEY_WIDTH: gl.constexpr = PARTS * tensors.q.block_shape[4]
    SCORES: gl.constexpr = product_layout(BLOCK_K)
    VALUES: gl.constexpr = product_layout(WIDTH)
    if CONSUMER == CONSUMERS - 1:
        end_turn(CONSUMER, SCHEDULE)  # so that the first one begins
    q_turn = CONSUMER
    turn = 0
    tiles = count_tiles(tensors.table, call.heads)
    tile = read_tile(tensors.table, gl.program_id(0), tiles, call.heads, FEATURES.heads_together, FEATURES.padded)
    for number in range(gl.program_id(0), tiles, gl.num_programs(0)):
        numbers = numbers_of(tile, call)
        bounds = tile_bounds(tile, numbers, BLOCK_Q, BLOCK_K, FEATURES)
        row = tile.row + CONSUMER * ROWS
        rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
        visible = visible_keys(rows, numbers, FEATURES)
        own = bounds
        if not (FEATURES.padded and FEATURES.window):
            own = block_bounds_of(row, bounds, numbers, ROWS, BLOCK_K, CONSUMERS, FEATURES)
        fixed = (take(q_ring, q_turn, PARTS, Q_SLOTS), k_ring, v_ring, visible, numbers)
        turn = skip(turn, bounds.high - own.high, fixed, CONSUMER, SCHEDULE)
        is_partial = own.full_high < own.high or own.full_low == own.high
        state, turn = begin(turn, own.high - 1, is_partial, fixed, WIDTH, CONSUMER, FEATURES, SCHEDULE)
        full_high = gl.minimum(own.full_high, own.high - 1)
        full_low = gl.minimum(own.full_low, own.high - 1)
        # Keys on the diagonal, or in the last partial block.
        state, turn = fold(state, turn, own.high - 1, full_high, fixed, CONSUMER, FEATURES, SCHEDULE, True)
        # Keys that every row sees: no mask.
        state, turn = fold(state, turn, full_high, full_low, fixed, CONSUMER, FEATURES, SCHEDULE, False)
        if FEATURES.window:
            # Keys that enter the window of some rows only.
            state, turn = fold(state, turn, full_low, own.low, fixed, CONSUMER, FEATURES, SCHEDULE, True)
        if not SCHEDULE.out_in_queries:
            hand_back(q_ring, q_turn, Q_SLOTS)
        (v_tile,) = take(v_ring, turn - 1, 1, SLOTS)
        weights = as_factor(state.weights, v_tile.dtype, VALUES)
        accumulator = warpgroup_mma(weights, v_tile, state.accumulator, is_async=True)
        factor, row_log_sum_exp = end_packed_rows(state, rows, tile, tensors.sinks, FEATURES)
        if call.scales is not None:
            factor *= gl.load(call.scales.vals + tile.head // call.group * call.scales.value_stride)
        if tensors.log_sum_exp is not None:
            places = gl.cast(tile.out_begin + rows, gl.int64) * call.heads + tile.head
            gl.store(tensors.log_sum_exp + places, row_log_sum_exp, mask=rows < tile.count)
        following = gl.minimum(number + gl.num_programs(0), tiles - 1)
        # Under the product.
        next_tile = read_tile(tensors.table, following, tiles, call.heads, FEATURES.heads_together, FEATURES.padded)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        hand_back(v_ring, turn - 1, SLOTS)
        if FEATURES.window:
            turn = skip(turn, own.low - bounds.low, fixed, CONSUMER, SCHEDULE)
        factor = gl.convert_layout(factor, gl.SliceLayout(1, VALUES))
        results = accumulator * factor[:, None]
        if FEATURES.has_used:
            own_rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, VALUES))
            results = gl.where((own_rows < tile.used)[:, None], results, 0.0)
        out_slot = q_turn % Q_SLOTS if SCHEDULE.out_in_queries else CONSUMER
        if SCHEDULE.out_in_queries and KEY_WIDTH > WIDTH:
            out_slot = gl.cdiv(out_slot * KEY_WIDTH, WIDTH)  # the first that begins in these queries ends there, too
        out_tile = out_tiles.index(out_slot)
        wait_copies_out(0)  # of the tile before
        out_tile.reshape([ROWS, WIDTH]).store(results.to(out.dtype))
        fence_async_shared()
        copy_out(out, place_of(SequenceRows(tile.out_begin, tile.count), row, tile.head, 0), out_tile)
        if SCHEDULE.out_in_queries:
            wait_copies_out(0)
            hand_back(q_ring, q_turn, Q_SLOTS)
        q_turn += CONSUMERS
        tile = next_tile
    wait_copies_out(0)


@gluon.jit
def end_packed_rows(state, rows, tile, sinks, FEATURES: gl.constexpr):
    """Return what to multiply the accumulator of rows by, and the natural logarithms of their denominators.

    A sink, in natural units, is a logit without a value. Rows that do not count have seen no key.
    """
    row_max, row_sum = state.row_max, state.row_sum
    if FEATURES.has_used:
        row_max = gl.where(rows < tile.used, row_max, float("-inf"))
        row_sum = gl.where(rows < tile.used, row_sum, 0.0)
    if sinks is None:
        row_sum, log_sum_exp = end_rows(row_max, row_sum)
        factor = 1.0 / row_sum
    else:
        sink = gl.cast(gl.load(sinks + tile.head), gl.float32) * LOG2_E
        new_max = gl.maximum(row_max, sink)
        shift = shift_of(new_max)
        rescale = gl.exp2(row_max - shift)
        row_sum, log_sum_exp = end_rows(new_max, row_sum * rescale + gl.exp2(sink - shift))
        factor = rescale / row_sum
    return factor, log_sum_exp
