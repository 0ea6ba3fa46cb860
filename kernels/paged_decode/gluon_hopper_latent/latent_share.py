# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The share of a program: a block of rows of one sequence, and every SPLITS-th pair of tiles of its keys."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.search_spaces.flash_attention import warp_groups

ROWS = gl.constexpr(warp_groups.ROWS)  # of a block: query heads, times queries
KEYS = gl.constexpr(64)  # of a tile


class Latents(NamedTuple):
    """The constants of a binary: columns of a group's half of the values, and of what is beside them in a row of the
    cache; tiles that are held at once; keys of one copy, which lie in one page, and of a page; and of pages of one key,
    which are gathered, elements from one row to the next."""

    half: int
    beside: int
    slots: int
    run: int
    page_size: int
    row: int


class Share(NamedTuple):
    """The keys of a program: every SPLITS-th of the pairs of tiles, from the pair of its split on."""

    lane: Any  # of sequence and block
    split: Any
    sequence: Any
    block: Any
    length: Any
    pairs: Any


@gluon.jit
def locate_share(seq_lens, capacity, TILE: gl.constexpr, SPLITS: gl.constexpr):
    """Return the share of this program; no sequence has more keys than ``capacity``, its row of the page table."""
    BLOCKS: gl.constexpr = (TILE.used_rows + TILE.rows - 1) // TILE.rows
    lanes = gl.num_programs(0) // SPLITS
    lane = gl.program_id(0) % lanes
    split = gl.program_id(0) // lanes
    length = gl.maximum(gl.minimum(gl.load(seq_lens + lane // BLOCKS), capacity), 0)
    pairs = gl.maximum(gl.cdiv(length, 2 * KEYS) + SPLITS - 1 - split, 0) // SPLITS
    return Share(lane, split, lane // BLOCKS, lane % BLOCKS, length, pairs)


@gluon.jit
def load_page(page_list, tile, piece, length, LATENTS: gl.constexpr):
    """Load the page of a piece of a tile, a run of keys; a negative number is none, as where no key is of the sequence.

    Nor is one past the cache, which becomes -1.
    """
    key = tile * KEYS + piece * LATENTS.run
    page = gl.load(page_list.row + key // LATENTS.page_size, mask=key < length, other=-1)
    return gl.where(page < page_list.cache_pages, page, -1)


@gluon.jit
def first_slot(tile, piece, LATENTS: gl.constexpr):
    """Return the slot of its page where a piece of a tile begins."""
    return (tile * KEYS + piece * LATENTS.run) % LATENTS.page_size


@gluon.jit
def load_rows(page_list, tile, length, LAYOUT: gl.constexpr):
    """Load the rows of the cache where the keys of a tile are, of pages of one key; negative numbers are none.

    Those past the sequence and those past the cache become -1.
    """
    keys = tile * KEYS + gl.arange(0, KEYS, LAYOUT)
    rows = gl.load(page_list.row + keys, mask=keys < length, other=-1)
    return gl.where(rows < page_list.cache_pages, rows, -1)


@gluon.constexpr_function
def warp_layout():
    """Return how every warp of a group holds numbers of all keys of a tile."""
    return gl.BlockedLayout([2], [32], [4], [0])


@gluon.jit
def list_pieces(page_list, tile, length, LATENTS: gl.constexpr):
    """Return which pieces of a tile have a page, as bits; see ``load_page`` for what is none, and ``list_rows``."""
    bits = 0
    if LATENTS.page_size > 1:
        for piece in gl.static_range(KEYS // LATENTS.run):
            bits += gl.where(load_page(page_list, tile, piece, length, LATENTS) >= 0, 1 << piece, 0)
    return bits


@gluon.jit
def list_rows(listed, page_list, tile, length, LATENTS: gl.constexpr):
    """Of pages of one key begin to load the rows of a tile, some in every warp; else return what ``list_pieces`` did.

    Under the products of scores: the fence before those waits for loads.
    """
    if LATENTS.page_size == 1:
        listed = load_rows(page_list, tile, length, warp_layout())
    return listed


@gluon.jit
def are_all_listed(listed, LATENTS: gl.constexpr):
    """Return if all keys of a tile have a page, by ``list_rows``."""
    return gl.min(listed, 0) >= 0 if LATENTS.page_size == 1 else listed == 2 ** (KEYS // LATENTS.run) - 1
