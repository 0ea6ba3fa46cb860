# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Tiles of latents from pages of one key, such as top-k indices: rows that lie anywhere in the cache.

No tensor map of Hopper gathers rows (PTX ISA 8.6: ``.tile::gather4`` needs sm_100). So the threads of the group that
loads copy pieces of 16 bytes each by ``cp.async``, eight threads 128 bytes of a row, which the widest swizzle spreads
over all banks. Their copies arrive at the barrier of a part by themselves once they are there, and no thread waits.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.gluon import gather_in, gathered_arrive, mbarrier
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_ring import GROUPS, block_layout
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_share import load_rows


@gluon.jit
def load_tile_rows(page_list, tile, length):
    """Load the rows of a tile's keys for the threads that copy them."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, block_layout())
    return load_rows(page_list, tile, length, LAYOUT)


@gluon.jit
def gather(ring, cache, rows, slot, phase, GROUP: gl.constexpr, LATENTS: gl.constexpr):
    """Begin to copy the rows of a tile of this group's into a slot, each part once it is handed back; no row is 0."""
    LAYOUT: gl.constexpr = block_layout()
    is_row = (rows >= 0)[:, None]
    starts = cache + (gl.cast(rows, gl.int64) * LATENTS.row)[:, None]
    for part in gl.static_range(2):
        half = (GROUP + part) % GROUPS
        columns = half * LATENTS.half + gl.arange(0, LATENTS.half, gl.SliceLayout(0, LAYOUT))
        mbarrier.wait(ring.empty.index(2 * slot + part), phase ^ 1)
        gather_in(ring.halves.index(2 * slot + half), starts + columns[None, :], mask=is_row)
        if part == 1:
            columns = GROUPS * LATENTS.half + gl.arange(0, LATENTS.beside, gl.SliceLayout(0, LAYOUT))
            gather_in(ring.beside.index(slot), starts + columns[None, :], mask=is_row)
        gathered_arrive(ring.full.index(2 * slot + part), increment_count=False)
