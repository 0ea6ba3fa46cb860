# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Flash attention forward of e4m3 in Gluon for Hopper: ``gluon_hopper`` with products of one byte an element.

Queries and keys are multiplied as they are, their scales in that of the scores. Weights are rounded to e4m3 and stay
in registers; values come transposed (``values.transpose_values``), one block of keys behind the other.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.flash_attention.gluon_hopper.forward import PRODUCER_REGISTERS, ROWS, Operands, skip
from autotune.kernels.flash_attention.gluon_hopper.rings import begin_ring, fill, hand_back, take
from autotune.kernels.flash_attention.gluon_hopper.schedule import (
    Numbers,
    block_bounds,
    block_bounds_of,
    locate_tile,
)
from autotune.kernels.flash_attention.gluon_hopper.turns import begin_turn, end_turn
from autotune.kernels.flash_attention.gluon_hopper.weights import cap, hide_keys, visible_keys
from autotune.kernels.flash_attention.gluon_hopper_fp8.byte_schedule import scaled_numbers, value_scale_of
from autotune.kernels.flash_attention.gluon_hopper_fp8.byte_weights import (
    WEIGHT_BITS,
    as_byte_factor,
    pack_weights,
    weigh_scaled,
)
from autotune.kernels.gluon import (
    copy_out,
    fence_async_shared,
    product_layout_of_bytes,
    wait_copies_out,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from autotune.kernels.tiles import softmax

end_rows = gluon.jit(softmax.end_rows.fn)

# No binary of its own for any of them.
_NUMBERS = ["heads", "group", "seq_q", "seq_kv", "window", "tiles", "section", "flips", "scales"]


class ByteState(NamedTuple):
    """The softmax of a consumer's rows over the keys seen so far; the last block's weights are not multiplied yet.

    ``rescale`` is the factor of what was accumulated before that block, with sums of blocks; without, it is multiplied.
    """

    accumulators: Any  # by parts of the columns of values
    weights: Any
    row_max: Any
    row_sum: Any
    rescale: Any


@gluon.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_NUMBERS)
def byte_attention_forward(
    q, k, v, out, log_sum_exp, scales, heads, group, seq_q, seq_kv, window, score_scale, value_scale, softcap, tiles,
    section, flips, WIDTH_V: gl.constexpr, FEATURES: gl.constexpr, SCHEDULE: gl.constexpr,
):  # fmt: skip
    """Compute ``out = softmax(q k^T) v`` over descriptors of ``[B, S, H, D]``; every program takes each N-th tile.

    ``v`` is ``[B, blocks * WIDTH_V, H, BLOCK_K]``: of each block of keys its values, transposed. ``log_sum_exp`` is
    fp32 ``[B, H, S]`` or None.
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
    out_tiles = gl.allocate_shared_memory(out.dtype, [CONSUMERS] + out.block_shape, out.layout)  # noqa: RUF005 (Triton's language)
    results = (out_tiles, out, log_sum_exp, scales, value_scale)
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (attend_rows, (0, rings, results, numbers, FEATURES, SCHEDULE)),
                (feed_rings, (rings, tensors, numbers, WIDTH_V, FEATURES, SCHEDULE)),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (attend_rows, (0, rings, results, numbers, FEATURES, SCHEDULE)),
                (attend_rows, (1, rings, results, numbers, FEATURES, SCHEDULE)),
                (feed_rings, (rings, tensors, numbers, WIDTH_V, FEATURES, SCHEDULE)),
            ],
            [4, 1],
            [REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (attend_rows, (0, rings, results, numbers, FEATURES, SCHEDULE)),
                (attend_rows, (1, rings, results, numbers, FEATURES, SCHEDULE)),
                (attend_rows, (2, rings, results, numbers, FEATURES, SCHEDULE)),
                (feed_rings, (rings, tensors, numbers, WIDTH_V, FEATURES, SCHEDULE)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, PRODUCER_REGISTERS],
        )


@gluon.jit
def feed_rings(rings, tensors, numbers, WIDTH_V: gl.constexpr, FEATURES: gl.constexpr, SCHEDULE: gl.constexpr):
    """Copy the queries of each tile, and the keys and transposed values that it sees, into the rings."""
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
            block = bounds.high - 1 - (step - bounds.low)
            fill(k_ring, tensors.k, tile.batch, block * BLOCK_K, kv_head, turn, PARTS, SLOTS)
            fill(v_ring, tensors.v, tile.batch, block * WIDTH_V, kv_head, turn, 1, SLOTS)
            turn += 1


@gluon.jit
def attend_rows(CONSUMER: gl.constexpr, rings, results, numbers, FEATURES: gl.constexpr, SCHEDULE: gl.constexpr):
    """Compute the rows of one consumer, of every tile."""
    q_ring, k_ring, v_ring = rings
    out_tiles, out, log_sum_exp, scales, value_scale = results
    CONSUMERS: gl.constexpr = SCHEDULE.consumers
    BLOCK_Q: gl.constexpr = ROWS * CONSUMERS
    BLOCK_K: gl.constexpr = SCHEDULE.block_k
    SLOTS: gl.constexpr = SCHEDULE.slots
    Q_SLOTS: gl.constexpr = CONSUMERS * SCHEDULE.query_slots
    PARTS: gl.constexpr = FEATURES.key_parts
    WIDTH: gl.constexpr = out.block_shape[3]
    SCORES: gl.constexpr = product_layout_of_bytes(BLOCK_K)
    VALUE_PARTS: gl.constexpr = SCHEDULE.value_parts
    PART: gl.constexpr = WIDTH // VALUE_PARTS
    VALUES: gl.constexpr = product_layout_of_bytes(PART)
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
        fixed = (take(q_ring, q_turn, PARTS, Q_SLOTS), k_ring, v_ring, visible, scaled_numbers(numbers, scales, tile))
        turn = skip(turn, bounds.high - own.high, fixed, CONSUMER, SCHEDULE)
        is_partial = own.full_high < own.high or own.full_low == own.high
        state, turn = begin_rows(turn, own.high - 1, is_partial, fixed, WIDTH, CONSUMER, FEATURES, SCHEDULE)
        full_high = gl.minimum(own.full_high, own.high - 1)
        full_low = gl.minimum(own.full_low, own.high - 1)
        # Keys on the diagonal, or in the last partial block.
        state, turn = fold_blocks(state, turn, own.high - 1, full_high, fixed, CONSUMER, FEATURES, SCHEDULE, True)
        # Keys that every row sees: no mask.
        state, turn = fold_blocks(state, turn, full_high, full_low, fixed, CONSUMER, FEATURES, SCHEDULE, False)
        if FEATURES.window:
            # Keys that enter the window of some rows only.
            state, turn = fold_blocks(state, turn, full_low, own.low, fixed, CONSUMER, FEATURES, SCHEDULE, True)
        hand_back(q_ring, q_turn, Q_SLOTS)
        products = begin_values(state, v_ring, turn - 1, SCHEDULE)
        row_sum, row_log_sum_exp = end_rows(state.row_max - WEIGHT_BITS, state.row_sum)
        if log_sum_exp is not None:
            first = gl.cast(tile.batch * numbers.heads + tile.head, gl.int64) * numbers.seq_q
            gl.store(log_sum_exp + first + rows, row_log_sum_exp, mask=rows < numbers.seq_q)
        factor = value_scale_of(value_scale, numbers, scales, tile) / row_sum
        following = gl.minimum(number + gl.num_programs(0), numbers.tiles - 1)
        next_tile = locate_tile(following, numbers, BLOCK_Q)  # under the product: some seven divisions
        accumulators = end_values(state, products, SCHEDULE)
        hand_back(v_ring, turn - 1, SLOTS)
        if FEATURES.window:
            turn = skip(turn, own.low - bounds.low, fixed, CONSUMER, SCHEDULE)
        factor = gl.convert_layout(factor, gl.SliceLayout(1, VALUES))
        out_tile = out_tiles.index(CONSUMER)
        wait_copies_out(0)  # of the tile before
        out_rows = out_tile.reshape([ROWS, WIDTH])
        for part in gl.static_range(VALUE_PARTS):
            found = (accumulators[part] * factor[:, None]).to(out.dtype)
            out_rows.slice(part * PART, PART, dim=1).store(found)
        fence_async_shared()
        copy_out(out, [tile.batch, row, tile.head, 0], out_tile)
        q_turn += CONSUMERS
        tile = next_tile
    wait_copies_out(0)


@gluon.jit
def begin_rows(
    turn, block, is_partial, fixed, WIDTH: gl.constexpr, CONSUMER: gl.constexpr, FEATURES: gl.constexpr,
    SCHEDULE: gl.constexpr,
):  # fmt: skip
    """Return the state of rows after one block of keys, which some may not see all of, and the next turn."""
    q_parts, k_ring, _, visible, numbers = fixed
    BLOCK_K: gl.constexpr = SCHEDULE.block_k
    SLOTS: gl.constexpr = SCHEDULE.slots
    PARTS: gl.constexpr = FEATURES.key_parts
    SCORES: gl.constexpr = product_layout_of_bytes(BLOCK_K)
    VALUE_PARTS: gl.constexpr = SCHEDULE.value_parts
    VALUES: gl.constexpr = product_layout_of_bytes(WIDTH // VALUE_PARTS)
    k_parts = take(k_ring, turn, PARTS, SLOTS)
    begin_turn(CONSUMER, SCHEDULE)
    scores = multiply_bytes(q_parts, k_parts, BLOCK_K, PARTS)
    scores = warpgroup_mma_wait(0, deps=[scores])
    end_turn(CONSUMER, SCHEDULE)
    hand_back(k_ring, turn, SLOTS)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    row_sum = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    scores = cap(scores, numbers, FEATURES)
    if is_partial:
        scores = hide_keys(scores, block * BLOCK_K, visible, FEATURES)
    weights, row_max, row_sum, rescale = weigh_scaled(scores, row_max, row_sum, numbers, FEATURES, True)
    accumulators = ()
    for _ in gl.static_range(VALUE_PARTS):
        accumulators += (gl.zeros([ROWS, WIDTH // VALUE_PARTS], gl.float32, VALUES),)  # type: ignore[assignment]
    return ByteState(accumulators, pack_weights(weights), row_max, row_sum, rescale), turn + 1


@gluon.jit
def fold_blocks(
    state, turn, start, stop, fixed, CONSUMER: gl.constexpr, FEATURES: gl.constexpr, SCHEDULE: gl.constexpr,
    MASKED: gl.constexpr,
):  # fmt: skip
    """Fold the blocks of keys ``start > block >= stop`` into the state, the last first; return it and the next turn."""
    q_parts, k_ring, v_ring, visible, numbers = fixed
    BLOCK_K: gl.constexpr = SCHEDULE.block_k
    SLOTS: gl.constexpr = SCHEDULE.slots
    PARTS: gl.constexpr = FEATURES.key_parts
    for step in range(stop, start):
        key = (start - 1 - (step - stop)) * BLOCK_K
        k_parts = take(k_ring, turn, PARTS, SLOTS)
        begin_turn(CONSUMER, SCHEDULE)
        scores = multiply_bytes(q_parts, k_parts, BLOCK_K, PARTS)
        end_turn(CONSUMER, SCHEDULE)
        if not SCHEDULE.values_early:
            scores = warpgroup_mma_wait(0, deps=[scores])
        products = begin_values(state, v_ring, turn - 1, SCHEDULE)
        if SCHEDULE.values_early:
            scores = warpgroup_mma_wait(1, deps=[scores])
        hand_back(k_ring, turn, SLOTS)
        scores = cap(scores, numbers, FEATURES)
        if MASKED:
            scores = hide_keys(scores, key, visible, FEATURES)
        weights, row_max, row_sum, rescale = weigh_scaled(
            scores, state.row_max, state.row_sum, numbers, FEATURES, MASKED
        )
        accumulators = end_values(state, products, SCHEDULE)
        hand_back(v_ring, turn - 1, SLOTS)
        if not SCHEDULE.block_sums:
            factor = gl.convert_layout(rescale, gl.SliceLayout(1, accumulators[0].type.layout))
            accumulators = (accumulators[0] * factor[:, None],)
        state = ByteState(accumulators, pack_weights(weights), row_max, row_sum, rescale)
        turn += 1
    return state, turn


@gluon.jit
def begin_values(state, v_ring, turn, SCHEDULE: gl.constexpr):
    """Begin to multiply the last block's weights and values; return the products to wait for, or what they add up to.

    Values in parts are multiplied one after another, since registers hold no more beside the sums.
    """
    VALUES: gl.constexpr = state.accumulators[0].type.layout
    PART: gl.constexpr = state.accumulators[0].shape[1]
    (v_tile,) = take(v_ring, turn, 1, SCHEDULE.slots)
    factor = as_byte_factor(state.weights, VALUES)
    VALUE_PARTS: gl.constexpr = SCHEDULE.value_parts
    if VALUE_PARTS > 1:
        rescale = gl.convert_layout(state.rescale, gl.SliceLayout(1, VALUES))
        products = ()
        for part in gl.static_range(VALUE_PARTS):
            columns = v_tile.slice(part * PART, PART, dim=0).permute((1, 0))
            none = gl.zeros([ROWS, PART], gl.float32, VALUES)
            product = warpgroup_mma(factor, columns, none, use_acc=False, is_async=True)
            product = warpgroup_mma_wait(0, deps=[product])
            products += (state.accumulators[part] * rescale[:, None] + product,)  # type: ignore[assignment]
    elif SCHEDULE.block_sums:
        none = gl.zeros([ROWS, PART], gl.float32, VALUES)
        products = warpgroup_mma(factor, v_tile.permute((1, 0)), none, use_acc=False, is_async=True)
    else:
        products = warpgroup_mma(factor, v_tile.permute((1, 0)), state.accumulators[0], is_async=True)
    return products


@gluon.jit
def end_values(state, products, SCHEDULE: gl.constexpr):
    """Return what is accumulated once the products of the last block's weights and values are there."""
    VALUES: gl.constexpr = state.accumulators[0].type.layout
    if SCHEDULE.value_parts > 1:
        sums = products
    else:
        products = warpgroup_mma_wait(0, deps=[products])
        if SCHEDULE.block_sums:
            rescale = gl.convert_layout(state.rescale, gl.SliceLayout(1, VALUES))
            products = state.accumulators[0] * rescale[:, None] + products
        sums = (products,)
    return sums


@gluon.jit
def multiply_bytes(q_parts, k_parts, BLOCK_K: gl.constexpr, PARTS: gl.constexpr):
    """Begin to multiply queries and keys, summing over the parts of their columns; return the scores to wait for."""
    scores = gl.zeros([ROWS, BLOCK_K], gl.float32, product_layout_of_bytes(BLOCK_K))
    for part in gl.static_range(PARTS):
        scores = warpgroup_mma(q_parts[part], k_parts[part].permute((1, 0)), scores, use_acc=part > 0, is_async=True)
    return scores
