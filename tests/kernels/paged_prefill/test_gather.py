"""The kernel that lays pages side by side: interpreted against torch, and the bugs that this must catch."""

import sys
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from autotune.errors import InvalidShapeError, UnsupportedCallError
from autotune.kernels.paged_cache.layout import allocate_caches
from autotune.kernels.paged_prefill.gluon_hopper import KERNEL
from autotune.kernels.paged_prefill.gluon_hopper.gather import gather_pages
from autotune.kernels.paged_prefill.gluon_hopper.launch import (
    TOKENS,
    allocate_gathered,
    launch_gathered,
    paging_of,
)
from autotune.kernels.tiles.pages import Cache
from autotune.kernels.tiles.rows import Widths
from autotune.search_spaces.bounds import padded_widths
from autotune.search_spaces.paged_prefill.gluon_hopper import MOST_BYTES
from autotune.shape import PagedShape
from tests.contract.implementations.paged_prefill_gluon_hopper import CONFIG
from tests.contract.interpreting import interpret
from tests.contract.planting import Mutant, load_copy, package_of
from tests.kernels.paged_prefill.gathered import gather

SIZES: Final[dict[str, Any]] = {"batch": 4, "heads": 4, "kv_heads": 2, "seq_q": 64, "max_context": 140, "head_dim": 32}
SHAPES: Final = {
    "plain": PagedShape(**SIZES, dtype="float16"),
    "long": PagedShape(**{**SIZES, "max_context": 600}, dtype="float16"),
    "heads before slots": PagedShape(**SIZES, dtype="float16", layout="HND", page_size=64),
    "page of one": PagedShape(**SIZES, dtype="float16", page_size=1),
    "page of no power of two": PagedShape(**SIZES, dtype="float16", page_size=24),
    "odd widths": PagedShape(**{**SIZES, "head_dim": 40}, head_dim_v=24, dtype="float16", page_size=48),
    "e4m3": PagedShape(**SIZES, dtype="float16", kv_dtype="float8_e4m3fn"),
    "e5m2": PagedShape(**SIZES, dtype="float16", kv_dtype="float8_e5m2", page_size=528, layout="HND"),
}
PAGES: Final = 150
SMALLEST: Final = 2.0**-6
# About a block and about a page, none, and more than the table has room for; and new queries.
LENGTHS: Final = (33, 0, 139, 2**31 - 1)
COUNTS: Final = (5, 3, 0, 40)
WINDOW: Final = 20


def normal_numbers(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw normal numbers of every type: the interpreter of Triton 3.6 takes others of e5m2 for 0."""
    drawn = torch.randn(like.shape, generator=generator)
    return torch.where(drawn.abs() < SMALLEST, SMALLEST, drawn).to(like.dtype)


def gather_failure(name: str, window: int | None = None, kernel: Any = gather_pages) -> str | None:
    """Copy random pages, some of which the cache has not; compare all that is written, and what is not, with torch."""
    shape, generator = SHAPES[name], torch.Generator().manual_seed(0)
    k_cache, v_cache = (each.copy_(normal_numbers(each, generator)) for each in allocate_caches(shape, PAGES, "cpu"))
    table = torch.randint(-1, PAGES + 1, (shape.batch, -(-shape.max_context // shape.page_size)), generator=generator)
    room = table.shape[1] * shape.page_size
    scales = torch.tensor([-0.5, 3.0]) if shape.kv_dtype != shape.dtype else None
    like = torch.empty(0, dtype=getattr(torch, shape.dtype))
    found, expected = (
        allocate_gathered(like, shape.batch * room, shape.kv_heads, (shape.head_dim, shape.head_dim_v), shape.batch)
        for _ in range(2)
    )
    for each in (*found[:2], *expected[:2]):
        each.fill_(-7.0)
    offsets = torch.nn.functional.pad(torch.tensor(COUNTS).cumsum(0), (1, 0)).int()
    inputs = (Cache(k_cache, v_cache, scales, scales), table.int(), torch.tensor(LENGTHS, dtype=torch.int32))
    numbers: tuple[Any, ...] = (None if window is None else offsets, table.stride(0), room, PAGES, room, window)
    widths = Widths(shape.head_dim, shape.head_dim_v, *padded_widths(shape.head_dim, shape.head_dim_v))
    constants: tuple[Any, ...] = (
        shape.kv_heads,
        TOKENS,
        widths,
        paging_of(k_cache, v_cache, scales, scales, shape.layout),
    )
    grid = (shape.kv_heads * -(-room // TOKENS), shape.batch)
    kernel[grid](*inputs, *found, *numbers, *constants, num_warps=4)
    gather(*inputs, *expected, *numbers, *constants)
    for what, one, true in zip(("keys", "values", "offsets"), found, expected, strict=True):
        if not torch.equal(one, true):
            return f"{what}: {int((one != true).sum())} of {one.numel()} differ"
    return None


def mutant_failure(mutant: Mutant, folder: Path) -> str | None:
    load_copy("paged_prefill", "gluon_hopper", mutant, folder)
    module = sys.modules[f"{package_of('paged_prefill', 'gluon_hopper', mutant)}.gather"]
    window = WINDOW if mutant.gate == "windows" else None
    return gather_failure("plain" if window else mutant.gate, window, module.gather_pages)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("window", [None, WINDOW])
def test_interpreted_pages_lie_side_by_side(name: str, window: int | None) -> None:
    assert interpret(gather_failure, name, window) is None


MUTANTS: Final = (
    Mutant("one head for all", "gather.py", "head = tl.program_id(0) % KV_HEADS", "head = tl.program_id(0) * 0",
           "plain"),
    Mutant("sequences over one another", "gather.py", "tl.cast(sequence, tl.int64) * room",
           "tl.cast(sequence, tl.int64) * 32", "plain"),
    Mutant("last key left behind", "gather.py", "present = tokens < length", "present = tokens < length - 1", "plain"),
    Mutant("offsets of keys", "gather.py", "(sequence + 1) * room)", "sequence * room)", "plain"),
    Mutant("pages of the first sequence", "gather.py", "offset(sequence, table_stride)", "offset(0, table_stride)",
           "plain"),
    Mutant("values of the keys", "gather.py", "v_cache = cache.v +", "v_cache = cache.k +", "plain"),
    Mutant("rows of another width", "gather.py", "rows[:, None] * WIDTHS.v", "rows[:, None] * 16", "odd widths"),
    Mutant("signs of scales lost", "gather.py", "< 0.0, -wide, wide)", "< 0.0, wide, wide)", "e4m3"),
    Mutant("keys outside of windows", "gather.py", "is_read = present & (tokens >= first)", "is_read = present",
           "windows"),
    Mutant("keys of no query", "gather.py", "tl.where(queries > 0, length, 0)", "length", "windows"),
    Mutant("first key of the window", "gather.py", "- window + 1, 0)", "- window + 2, 0)", "windows"),
    Mutant("zeros before the window", "gather.py", "TOKENS <= first - ZEROS", "TOKENS <= first", "windows"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_mutant_is_caught_on_the_cpu(mutant: Mutant, tmp_path: Path) -> None:
    assert interpret(mutant_failure, mutant, tmp_path) is not None


def launched(shape: PagedShape, tokens: int, scales: torch.Tensor | None = None) -> None:
    """Launch over tensors of the meta device, with a page table that has room for so many tokens a sequence."""
    q = torch.empty(8, shape.heads, shape.head_dim, dtype=torch.float16, device="meta")
    caches = allocate_caches(shape, 4, "meta")
    table = torch.empty(shape.batch, tokens // shape.page_size, dtype=torch.int32, device="meta")
    lengths, offsets = (torch.empty(shape.batch + more, dtype=torch.int32, device="meta") for more in (0, 1))
    options: dict[str, Any] = {"window": None, "softcap": None, "sinks": None, "alibi_slopes": None, "options": CONFIG}
    launch_gathered(
        *(q, *caches, table, lengths, offsets, torch.empty_like(q), None),
        **(options | {"layout": shape.layout, "scale": 1.0, "k_scale": scales, "v_scale": scales}),
    )


def test_a_table_with_more_room_than_is_copied_is_left_to_others() -> None:
    with pytest.raises(UnsupportedCallError, match=rf"^page_table has room for 4 x 2097168 .* than {MOST_BYTES}"):
        launched(SHAPES["plain"], 2**21 + 16)


def test_a_pool_without_pages_is_left_to_others() -> None:
    with pytest.raises(UnsupportedCallError, match=r"^there are no pages, of which keys could be copied"):
        launched(SHAPES["plain"], 0)


def test_scales_of_tokens_are_left_to_others() -> None:
    scales = torch.empty(4, 16, 2, device="meta")
    with pytest.raises(UnsupportedCallError, match=r"^k_scale has a scale for each token, and this kernel takes one"):
        launched(SHAPES["e4m3"], 160, scales)


def test_a_shape_that_it_does_not_compute_is_refused_by_name() -> None:
    with pytest.raises(InvalidShapeError, match=r"^paged_prefill/gluon_hopper has no ALiBi slopes"):
        KERNEL.bind(CONFIG, PagedShape(**SIZES, dtype="float16", alibi=True))
