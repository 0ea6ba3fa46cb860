# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""From scores to weights, and what the two groups tell each other: weights of a tile, and maxima of rows after it.

Tiles are folded one after another, as in FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1): the maxima after a tile
are at least those before it, whichever group has computed them.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.gluon import fence_async_shared, mbarrier, product_layout
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_share import KEYS, ROWS, are_all_listed, load_rows
from autotune.kernels.tiles import softmax

shift_of = gluon.jit(softmax.shift_of.fn)


class Mailbox(NamedTuple):
    """The numbers that one group hands to the other, fp32 ``[64]``, one a row, and the barrier of their arrival."""

    numbers: Any
    ready: Any


class HalfState(NamedTuple):
    """The softmax of rows: this group's columns of the accumulator, the maxima after the last tile that it knows of,
    and the sums of this group's weights."""

    accumulator: Any
    row_max: Any
    row_sum: Any


@gluon.jit
def begin_mailbox():
    """Return an empty mailbox."""
    numbers = gl.allocate_shared_memory(gl.float32, [ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(ready.index(0), count=1)
    return Mailbox(numbers, ready)


@gluon.jit
def tell(box, numbers):
    """Hand over numbers of rows, and all that this group has written to shared memory."""
    box.numbers.store(numbers)
    fence_async_shared()
    mbarrier.arrive(box.ready.index(0), count=1)


@gluon.jit
def hear(box, turn):
    """Wait for the numbers of a turn."""
    mbarrier.wait(box.ready.index(0), turn & 1)
    return box.numbers.load(gl.SliceLayout(1, product_layout(KEYS)))


@gluon.jit
def begin_rows(HALF: gl.constexpr):
    """Return the state of rows that have seen no key."""
    SCORES: gl.constexpr = product_layout(KEYS)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    row_sum = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    return HalfState(gl.zeros([ROWS, HALF], gl.float32, product_layout(HALF)), row_max, row_sum)


@gluon.jit
def last_keys(share, TILE: gl.constexpr):
    """Return the last key that each row sees."""
    rows = share.block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, product_layout(KEYS)))
    return share.length - TILE.queries + rows // TILE.group


@gluon.jit
def hide_keys(scores, tile, last, listed, page_list, share, TILE: gl.constexpr, LATENTS: gl.constexpr):
    """Set to -inf the scores of keys that rows do not see, and of those that have no page."""
    PIECES: gl.constexpr = KEYS // LATENTS.run
    KEYS_OF_SCORES: gl.constexpr = gl.SliceLayout(0, product_layout(KEYS))
    is_whole = (tile + 1) * KEYS <= share.length - TILE.queries + 1
    if not (is_whole & are_all_listed(listed, LATENTS)):
        # By the keys, which differ from tile to tile: what is the same in all is kept in registers, which are few.
        keys = tile * KEYS + gl.arange(0, KEYS, KEYS_OF_SCORES)
        if LATENTS.page_size == 1:
            is_listed = load_rows(page_list, tile, share.length, KEYS_OF_SCORES) >= 0
        else:
            is_listed = ((listed >> (keys // LATENTS.run % PIECES)) & 1) != 0
        is_seen = (keys[None, :] <= last[:, None]) & is_listed[None, :]
        scores = gl.where(is_seen, scores, float("-inf"))
    return scores


@gluon.jit
def raise_maxima(state, row_max):
    """Return the state with maxima that are no smaller, and what the accumulator is then multiplied by."""
    rescale = gl.exp2(state.row_max - shift_of(row_max))
    return HalfState(state.accumulator, row_max, state.row_sum * rescale), rescale


@gluon.jit
def weigh(scores, state, score_scale):
    """Return weights of scores, the state with their sums, and what the accumulator is then multiplied by."""
    row_max = gl.maximum(state.row_max, gl.max(scores, 1) * score_scale)
    state, rescale = raise_maxima(state, row_max)
    weights = gl.exp2(scores * score_scale - shift_of(row_max)[:, None])
    return weights, HalfState(state.accumulator, row_max, state.row_sum + gl.sum(weights, 1)), rescale
