# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The queries of a block in shared memory, whole, by the columns that the tiles of latents have."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.gluon import fence_async_shared, mbarrier, view_as
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_ring import COLUMNS, GROUPS, block_layout, tile_layout
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_share import ROWS


class LatentQueries(NamedTuple):
    """``halves [2, 64, half]`` and ``beside [1, 64, beside]`` of a block's queries; ``ready`` once both groups came."""

    halves: Any
    beside: Any
    ready: Any


@gluon.jit
def begin_queries(DTYPE: gl.constexpr, LATENTS: gl.constexpr):
    """Return room for queries."""
    halves = gl.allocate_shared_memory(DTYPE, [GROUPS, ROWS, LATENTS.half], tile_layout(ROWS, LATENTS.half))
    beside = gl.allocate_shared_memory(DTYPE, [1, ROWS, LATENTS.beside], tile_layout(ROWS, LATENTS.beside))
    ready = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(ready.index(0), count=GROUPS)
    return LatentQueries(halves, beside, ready)


@gluon.jit
def load_queries(queries, q, strides, share, GROUP: gl.constexpr, TILE: gl.constexpr, LATENTS: gl.constexpr):
    """Load this group's half of the queries, the first group also what is beside, and wait for all; rows past those of
    the sequence are 0."""
    BLOCKS: gl.constexpr = LATENTS.half // COLUMNS
    LAYOUT: gl.constexpr = block_layout()
    rows = share.block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    heads = gl.cast(rows % TILE.group, gl.int64) * strides[2]
    places = gl.cast(rows // TILE.group, gl.int64) * strides[1] + heads + gl.cast(share.sequence, gl.int64) * strides[0]
    mask = (rows < TILE.used_rows)[:, None]
    SHAPE: gl.constexpr = [GROUPS * BLOCKS, ROWS, COLUMNS]
    blocks = view_as(queries.halves, queries.halves.dtype, SHAPE, tile_layout(ROWS, COLUMNS))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    for number in gl.static_range(GROUP * BLOCKS, (GROUP + 1) * BLOCKS):
        found = gl.load(q + (places[:, None] + (number * COLUMNS + columns)[None, :]), mask=mask, other=0.0)
        blocks.index(number).store(found)
    if GROUP == 0:
        columns = gl.arange(0, LATENTS.beside, gl.SliceLayout(0, LAYOUT))
        first = GROUPS * LATENTS.half
        found = gl.load(q + (places[:, None] + (first + columns)[None, :]), mask=mask, other=0.0)
        queries.beside.index(0).store(found)
    fence_async_shared()
    mbarrier.arrive(queries.ready.index(0), count=1)
    mbarrier.wait(queries.ready.index(0), 0)
