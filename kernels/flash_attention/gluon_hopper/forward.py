# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Flash attention forward in Gluon for Hopper: a warp copies tiles in, groups of four warps compute 64 rows each.

Algorithm: FlashAttention-3 (Shah et al., arXiv 2407.08608, algorithms 1 and 2). The scores of one block of keys are
multiplied beside the values of the block before it, whose exponentials so run under matrix instructions. Keys are taken
from the last block backwards: those on the diagonal first, then those that every row sees.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.flash_attention.gluon_hopper.rings import begin_ring, fill, hand_back, take, wait_for
from autotune.kernels.flash_attention.gluon_hopper.schedule import Numbers, block_bounds, block_bounds_of, locate_tile
from autotune.kernels.flash_attention.gluon_hopper.turns import begin_turn, end_turn
from autotune.kernels.flash_attention.gluon_hopper.weights import as_factor, cap, hide_keys, pack, visible_keys, weigh
from autotune.kernels.gluon import (
    copy_out,
    fence_async_shared,
    product_layout,
    view_as,
    wait_copies_out,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from autotune.kernels.tiles import softmax
from autotune.search_spaces.flash_attention import warp_groups

ROWS = gl.constexpr(warp_groups.ROWS)  # of queries a consumer
PRODUCER_REGISTERS = gl.constexpr(24)  # the least that a warp may keep

end_rows = gluon.jit(softmax.end_rows.fn)

# No binary of its own for any of them.
_NUMBERS = ["heads", "group", "seq_q", "seq_kv", "window", "tiles", "section", "flips"]


class Operands(NamedTuple):
    """Tensor descriptors of ``[B, S, H, D]``, in tiles of one head."""

    q: Any
    k: Any
    v: Any
    out: Any


class RowState(NamedTuple):
    """The softmax of a consumer's rows over the keys seen so far; the last block's weights are not multiplied yet."""

    accumulator: Any
    weights: Any
    row_max: Any
    row_sum: Any


@gluon.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_NUMBERS)
def flash_attention_forward(
    q, k, v, out, log_sum_exp, heads, group, seq_q, seq_kv, window, score_scale, softcap, tiles, section, flips,
    FEATURES: gl.constexpr, SCHEDULE: gl.constexpr,
):  # fmt: skip
    """Compute ``out = softmax(q k^T) v`` over descriptors of ``[B, S, H, D]``; every program takes each N-th tile.

    ``log_sum_exp`` is fp32 ``[B, H, S]`` or None.
    """
    CONSUMERS: gl.constexpr = SCHEDULE.consumers
    SLOTS: gl.constexpr = SCHEDULE.slots
    REGISTERS: gl.constexpr = SCHEDULE.registers
    numbers = Numbers(heads, group, seq_q, seq_kv, window, score_scale, softcap, tiles, section, flips)
    tensors = Operands(q, k, v, out)
    Q_SLOTS: gl.constexpr = CONSUMERS * SCHEDULE.query_slots
    PARTS: gl.constexpr = FEATURES.key_parts
    q_ring, k_ring = begin_ring(q, PARTS, Q_SLOTS, 1), begin_ring(k, PARTS, SLOTS, CONSUMERS)
    rings = (q_ring, k_ring, begin_ring(v, 1, SLOTS, CONSUMERS))
    OUT_SLOTS: gl.constexpr = Q_SLOTS * PARTS * q.block_shape[3] // out.block_shape[3]
    if SCHEDULE.out_in_queries:
        out_tiles = view_as(q_ring.tiles, out.dtype, [OUT_SLOTS] + out.block_shape, out.layout)  # noqa: RUF005 (Triton's language)
    else:
        out_tiles = gl.allocate_shared_memory(out.dtype, [CONSUMERS] + out.block_shape, out.layout)  # noqa: RUF005
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consume, (0, rings, out_tiles, out, log_sum_exp, numbers, FEATURES, SCHEDULE)),
                (produce, (rings, tensors, numbers, FEATURES, SCHEDULE)),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (0, rings, out_tiles, out, log_sum_exp, numbers, FEATURES, SCHEDULE)),
                (consume, (1, rings, out_tiles, out, log_sum_exp, numbers, FEATURES, SCHEDULE)),
                (produce, (rings, tensors, numbers, FEATURES, SCHEDULE)),
            ],
            [4, 1],
            [REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (0, rings, out_tiles, out, log_sum_exp, numbers, FEATURES, SCHEDULE)),
                (consume, (1, rings, out_tiles, out, log_sum_exp, numbers, FEATURES, SCHEDULE)),
                (consume, (2, rings, out_tiles, out, log_sum_exp, numbers, FEATURES, SCHEDULE)),
                (produce, (rings, tensors, numbers, FEATURES, SCHEDULE)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, PRODUCER_REGISTERS],
        )


@gluon.jit
def produce(rings, tensors, numbers, FEATURES: gl.constexpr, SCHEDULE: gl.constexpr):
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
    for number in range(gl.program_id(0), numbers.tiles, gl.num_programs(0)):
        tile = locate_tile(number, numbers, BLOCK_Q)
        bounds = block_bounds(tile.row, numbers, BLOCK_Q, BLOCK_K, FEATURES)
        for consumer in gl.static_range(CONSUMERS):
            row = tile.row + consumer * ROWS
            fill(q_ring, tensors.q, tile.batch, row, tile.head, q_turn + consumer, PARTS, Q_SLOTS)
        q_turn += CONSUMERS
        kv_head = tile.head // numbers.group
        for step in range(bounds.low, bounds.high):
            key = (bounds.high - 1 - (step - bounds.low)) * BLOCK_K
            fill(k_ring, tensors.k, tile.batch, key, kv_head, turn, PARTS, SLOTS)
            fill(v_ring, tensors.v, tile.batch, key, kv_head, turn, 1, SLOTS)
            turn += 1


@gluon.jit
def consume(
    CONSUMER: gl.constexpr, rings, out_tiles, out, log_sum_exp, numbers, FEATURES: gl.constexpr, SCHEDULE: gl.constexpr
):  # fmt: skip
    """Compute the rows of one consumer, of every tile."""
    q_ring, k_ring, v_ring = rings
    CONSUMERS: gl.constexpr = SCHEDULE.consumers
    BLOCK_Q: gl.constexpr = ROWS * CONSUMERS
    BLOCK_K: gl.constexpr = SCHEDULE.block_k
    SLOTS: gl.constexpr = SCHEDULE.slots
    Q_SLOTS: gl.constexpr = CONSUMERS * SCHEDULE.query_slots
    PARTS: gl.constexpr = FEATURES.key_parts
    WIDTH: gl.constexpr = out.block_shape[3]
    KEY_WIDTH: gl.constexpr = PARTS * q_ring.tiles.shape[4]
    SCORES: gl.constexpr = product_layout(BLOCK_K)
    VALUES: gl.constexpr = product_layout(WIDTH)
    if CONSUMER == CONSUMERS - 1:
        end_turn(CONSUMER, SCHEDULE)  # so that the first one begins
    q_turn = CONSUMER
    turn = 0
    tile = locate_tile(gl.program_id(0), numbers, BLOCK_Q)
    for number in range(gl.program_id(0), numbers.tiles, gl.num_programs(0)):
        bounds = block_bounds(tile.row, numbers, BLOCK_Q, BLOCK_K, FEATURES)
        row = tile.row + CONSUMER * ROWS
        rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
        visible = visible_keys(rows, numbers, FEATURES)
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
        factor = as_factor(state.weights, v_tile.dtype, VALUES)
        accumulator = warpgroup_mma(factor, v_tile, state.accumulator, is_async=True)
        row_sum, row_log_sum_exp = end_rows(state.row_max, state.row_sum)
        if log_sum_exp is not None:
            first = gl.cast(tile.batch * numbers.heads + tile.head, gl.int64) * numbers.seq_q
            gl.store(log_sum_exp + first + rows, row_log_sum_exp, mask=rows < numbers.seq_q)
        following = gl.minimum(number + gl.num_programs(0), numbers.tiles - 1)
        next_tile = locate_tile(following, numbers, BLOCK_Q)  # under the product: some seven divisions
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        hand_back(v_ring, turn - 1, SLOTS)
        if FEATURES.window:
            turn = skip(turn, own.low - bounds.low, fixed, CONSUMER, SCHEDULE)
        factor = gl.convert_layout(1.0 / row_sum, gl.SliceLayout(1, VALUES))
        out_slot = q_turn % Q_SLOTS if SCHEDULE.out_in_queries else CONSUMER
        if SCHEDULE.out_in_queries and KEY_WIDTH > WIDTH:
            out_slot = gl.cdiv(out_slot * KEY_WIDTH, WIDTH)  # the first that begins in these queries ends there, too
        out_tile = out_tiles.index(out_slot)
        wait_copies_out(0)  # of the tile before
        out_tile.reshape([ROWS, WIDTH]).store((accumulator * factor[:, None]).to(out.dtype))
        fence_async_shared()
        copy_out(out, [tile.batch, row, tile.head, 0], out_tile)
        if SCHEDULE.out_in_queries:
            wait_copies_out(0)
            hand_back(q_ring, q_turn, Q_SLOTS)
        q_turn += CONSUMERS
        tile = next_tile
    wait_copies_out(0)


@gluon.jit
def skip(turn, count, fixed, CONSUMER: gl.constexpr, SCHEDULE: gl.constexpr):
    """Hand back blocks of keys that no row of this consumer sees; return the next turn."""
    _, k_ring, v_ring, _, _ = fixed
    for _ in range(count):
        wait_for(k_ring, turn, SCHEDULE.slots)
        begin_turn(CONSUMER, SCHEDULE)
        end_turn(CONSUMER, SCHEDULE)
        hand_back(k_ring, turn, SCHEDULE.slots)
        wait_for(v_ring, turn, SCHEDULE.slots)
        hand_back(v_ring, turn, SCHEDULE.slots)
        turn += 1
    return turn


@gluon.jit
def begin(
    turn, block, is_partial, fixed, WIDTH: gl.constexpr, CONSUMER: gl.constexpr, FEATURES: gl.constexpr,
    SCHEDULE: gl.constexpr,
):  # fmt: skip
    """Return the state of rows after one block of keys, which some may not see all of, and the next turn."""
    q_parts, k_ring, _, visible, numbers = fixed
    BLOCK_K: gl.constexpr = SCHEDULE.block_k
    SLOTS: gl.constexpr = SCHEDULE.slots
    PARTS: gl.constexpr = FEATURES.key_parts
    SCORES: gl.constexpr = product_layout(BLOCK_K)
    VALUES: gl.constexpr = product_layout(WIDTH)
    k_parts = take(k_ring, turn, PARTS, SLOTS)
    begin_turn(CONSUMER, SCHEDULE)
    scores = multiply_parts(q_parts, k_parts, BLOCK_K, PARTS)
    scores = warpgroup_mma_wait(0, deps=[scores])
    end_turn(CONSUMER, SCHEDULE)
    hand_back(k_ring, turn, SLOTS)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    row_sum = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    scores = cap(scores, numbers, FEATURES)
    if is_partial:
        scores = hide_keys(scores, block * BLOCK_K, visible, FEATURES)
    weights, row_max, row_sum, _ = weigh(scores, row_max, row_sum, numbers, FEATURES, True)
    accumulator = gl.zeros([ROWS, WIDTH], gl.float32, VALUES)
    return RowState(accumulator, pack(weights, k_parts[0].dtype), row_max, row_sum), turn + 1


@gluon.jit
def fold(
    state, turn, start, stop, fixed, CONSUMER: gl.constexpr, FEATURES: gl.constexpr, SCHEDULE: gl.constexpr,
    MASKED: gl.constexpr,
):  # fmt: skip
    """Fold the blocks of keys ``start > block >= stop`` into the state, the last first; return it and the next turn."""
    q_parts, k_ring, v_ring, visible, numbers = fixed
    BLOCK_K: gl.constexpr = SCHEDULE.block_k
    SLOTS: gl.constexpr = SCHEDULE.slots
    PARTS: gl.constexpr = FEATURES.key_parts
    VALUES: gl.constexpr = state.accumulator.type.layout
    for step in range(stop, start):
        key = (start - 1 - (step - stop)) * BLOCK_K
        k_parts = take(k_ring, turn, PARTS, SLOTS)
        begin_turn(CONSUMER, SCHEDULE)
        scores = multiply_parts(q_parts, k_parts, BLOCK_K, PARTS)
        end_turn(CONSUMER, SCHEDULE)
        if not SCHEDULE.values_early:
            scores = warpgroup_mma_wait(0, deps=[scores])
        (v_tile,) = take(v_ring, turn - 1, 1, SLOTS)
        factor = as_factor(state.weights, v_tile.dtype, VALUES)
        accumulator = warpgroup_mma(factor, v_tile, state.accumulator, is_async=True)
        if SCHEDULE.values_early:
            scores = warpgroup_mma_wait(1, deps=[scores])
        hand_back(k_ring, turn, SLOTS)
        scores = cap(scores, numbers, FEATURES)
        if MASKED:
            scores = hide_keys(scores, key, visible, FEATURES)
        weights, row_max, row_sum, rescale = weigh(scores, state.row_max, state.row_sum, numbers, FEATURES, MASKED)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        hand_back(v_ring, turn - 1, SLOTS)
        rescale = gl.convert_layout(rescale, gl.SliceLayout(1, VALUES))
        weights = pack(weights, v_tile.dtype)
        state = RowState(accumulator * rescale[:, None], weights, row_max, row_sum)
        turn += 1
    return state, turn


@gluon.jit
def multiply_parts(q_parts, k_parts, BLOCK_K: gl.constexpr, PARTS: gl.constexpr):
    """Begin to multiply queries and keys, summing over the parts of their columns; return the scores to wait for."""
    scores = gl.zeros([ROWS, BLOCK_K], gl.float32, product_layout(BLOCK_K))
    for part in gl.static_range(PARTS):
        scores = warpgroup_mma(q_parts[part], k_parts[part].permute((1, 0)), scores, use_acc=part > 0, is_async=True)
    return scores
