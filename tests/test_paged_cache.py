"""``PagedKVCache`` against lists of tokens: what every sequence reads back, shared prefixes, and an empty pool."""

import random
from typing import Literal

import pytest
import torch

from autotune import OutOfPagesError, PagedKVCache
from autotune.errors import InputMismatchError, UnknownNameError, UsageError
from autotune.kernels.paged_cache.quantization import dequantize, quantize
from autotune.kernels.paged_decode.reference import gather_keys


def cache_of(
    pages: int = 8,
    page_size: int = 4,
    layout: Literal["NHD", "HND"] = "NHD",
    dtype: torch.dtype = torch.float32,
    **scales: torch.Tensor,
) -> PagedKVCache:
    return PagedKVCache(
        pages=pages, page_size=page_size, kv_heads=2, head_dim=8, head_dim_v=16, layout=layout,
        dtype=dtype, device="cpu", **scales,
    )  # fmt: skip


def tokens(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2, 8, generator=generator), torch.randn(count, 2, 16, generator=generator)


def read(cache: PagedKVCache, sequence: int) -> list[torch.Tensor]:
    """What a kernel would read of a sequence."""
    (pages,), (length,) = cache.page_table([sequence]), cache.seq_lens([sequence]).tolist()
    pools = ((cache.k_cache, cache.k_scale), (cache.v_cache, cache.v_scale))
    return [gather_keys(x, pages, length, layout=cache.layout, scale=y, dtype=torch.float32) for x, y in pools]


def stored(rows: torch.Tensor, cache: PagedKVCache, scale: torch.Tensor | None) -> torch.Tensor:
    """What tokens are once the cache has quantized them."""
    if scale is None:
        return rows
    values, scale = quantize(rows, cache.k_cache.dtype, None if scale.ndim == 3 else scale)
    return dequantize(values, scale, torch.float32)


HEADS = torch.tensor([0.1, 2.0])
KINDS: dict[str, tuple[torch.dtype, dict[str, torch.Tensor]]] = {
    "float32": (torch.float32, {}),
    "int8": (torch.int8, {}),
    "e4m3": (torch.float8_e4m3fn, {}),
    "e5m2": (torch.float8_e5m2, {"k_scale": HEADS, "v_scale": torch.tensor(0.5)}),
}


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_history_reads_back(layout: Literal["NHD", "HND"], kind: str) -> None:
    """Two hundred random calls, against a list of tokens for each sequence."""
    rng = random.Random(f"{layout} {kind}")
    dtype, scales = KINDS[kind]
    cache = cache_of(20, 3, layout, dtype, **scales)
    alive: dict[int, list[torch.Tensor]] = {}
    refused = 0
    for step in range(200):
        chosen = rng.choice(list(alive)) if alive else None
        action = rng.choice(["allocate", "append", "append", "append", "fork", "free"])
        if action == "allocate" or chosen is None:
            alive[cache.allocate()] = [torch.zeros(0, 2, 8), torch.zeros(0, 2, 16)]
        elif action == "append":
            added = tokens(rng.choice([1, 1, 2, 7]), step)
            free = cache.free_pages
            try:
                cache.append(chosen, *added)
                pairs = zip(added, (cache.k_scale, cache.v_scale), strict=True)
                new = [stored(rows, cache, scale) for rows, scale in pairs]
                alive[chosen] = [torch.cat(pair) for pair in zip(alive[chosen], new, strict=True)]
            except OutOfPagesError:
                refused += 1
                assert cache.free_pages == free
        elif action == "fork":
            alive[cache.fork(chosen)] = alive[chosen]
        else:
            cache.free(chosen)
            del alive[chosen]
        for sequence, expected in alive.items():
            assert all(map(torch.equal, read(cache, sequence), expected))
    assert refused
    for sequence in alive:
        cache.free(sequence)
    assert cache.free_pages == 20


def test_a_fork_shares_all_pages_until_one_of_the_two_writes() -> None:
    cache = cache_of()
    first = cache.allocate()
    cache.append(first, *tokens(6))  # a page and a half
    second = cache.fork(first)
    assert cache.free_pages == 6
    assert torch.equal(*cache.page_table([first, second]))
    cache.append(second, *tokens(1, 1))
    ours, theirs = cache.page_table([first, second])
    assert ours[0] == theirs[0]
    assert ours[1] != theirs[1]
    assert cache.free_pages == 5
    cache.append(first, *tokens(1, 2))  # its page is its own by now
    assert cache.free_pages == 5
    cache.free(first)
    assert cache.free_pages == 6


def test_a_fork_at_the_end_of_a_page_copies_nothing() -> None:
    cache = cache_of()
    first = cache.allocate()
    cache.append(first, *tokens(4))
    cache.append(cache.fork(first), *tokens(1, 1))
    assert cache.free_pages == 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_floats_are_quantized(dtype: torch.dtype) -> None:
    cache = cache_of(dtype=torch.int8)
    sequence = cache.allocate()
    k, v = (rows.to(dtype) for rows in tokens(5))
    cache.append(sequence, k, v)
    assert cache.k_scale is not None
    assert cache.k_scale.shape == (8, 4, 2)
    for rows, kept in zip((k, v), read(cache, sequence), strict=True):
        limit = rows.float().abs().amax(-1, keepdim=True) / 254 * 1.001
        assert ((kept - rows.float()).abs() <= limit).all()


def test_scales_are_those_that_were_given_or_one() -> None:
    assert cache_of(dtype=torch.float32).k_scale is None
    cache = cache_of(dtype=torch.float8_e5m2, v_scale=HEADS)
    assert cache.k_scale is not None
    assert cache.k_scale.dtype == torch.float32
    assert torch.equal(cache.k_scale, torch.ones(()))
    assert cache.v_scale is HEADS


@pytest.mark.parametrize(
    ("dtype", "scale", "message"),
    [
        (torch.float32, torch.ones(()), "k_scale=.* is not allowed; expected None for a cache of torch.float32"),
        (torch.int8, torch.ones(8, 4, 2), "k_scale=.* is not allowed; expected None for a cache of torch.int8"),
        (torch.float8_e5m2, torch.ones(3), r"expected a float32 tensor of \(\) or \(2,\) for a cache of"),
        (torch.float8_e5m2, torch.ones(()).half(), r"expected a float32 tensor of \(\) or \(2,\) for a cache of"),
        (torch.float8_e4m3fn, 0.5, r"k_scale=0.5 is not allowed; expected a float32 tensor"),
    ],
)
def test_scales_that_do_not_fit_are_refused(dtype: torch.dtype, scale: torch.Tensor, message: str) -> None:
    with pytest.raises(InputMismatchError, match=message) as caught:
        cache_of(dtype=dtype, k_scale=scale)
    assert "\n" not in str(caught.value)


def test_tables_are_padded() -> None:
    cache = cache_of()
    short, long, empty = (cache.allocate() for _ in range(3))
    cache.append(short, *tokens(1))
    cache.append(long, *tokens(9))
    table, lengths = cache.page_table([long, empty, short]), cache.seq_lens([long, empty, short])
    assert table.dtype == lengths.dtype == torch.int32
    assert table.tolist() == [[1, 2, 3], [-1, -1, -1], [0, -1, -1]]
    assert lengths.tolist() == [9, 0, 1]
    assert cache.page_table([empty]).tolist() == [[-1]]
    assert cache.page_table([short], width=3).tolist() == [[0, -1, -1]]
    with pytest.raises(UsageError, match="width=2 is not allowed; the longest of these sequences has 3 pages"):
        cache.page_table([short, long], width=2)


def test_what_does_not_fit_is_refused() -> None:
    cache = cache_of(pages=2)
    sequence = cache.allocate()
    k, v = tokens(3)
    cache.append(sequence, k, v)
    with pytest.raises(OutOfPagesError, match="needs 2 more pages for 12 tokens, 1 of 2 are free; free a sequence"):
        cache.append(sequence, *tokens(9))
    assert cache.seq_lens([sequence]).tolist() == [3]
    with pytest.raises(InputMismatchError, match=r"v is \(3, 2, 8\) torch.float32; expected \(3, 2, 16\)"):
        cache.append(sequence, k, k)
    with pytest.raises(InputMismatchError, match=r"v is \(2, 2, 16\)"):
        cache.append(sequence, k, v[:2])
    with pytest.raises(InputMismatchError, match=r"k is .* torch.float16; expected .* torch.float32"):
        cache.append(sequence, k.half(), v)
    other = cache_of(dtype=torch.int8)
    empty = other.allocate()
    with pytest.raises(
        InputMismatchError, match=r"k is .* torch.int32; expected .* torch.float16 or torch.bfloat16 or"
    ):
        other.append(empty, k.int(), v)
    cache.free(sequence)
    for call in (cache.free, cache.fork, lambda number: cache.page_table([number])):
        with pytest.raises(UnknownNameError, match="sequence=0 is unknown; it was never allocated, or was freed"):
            call(sequence)
    with pytest.raises(UsageError, match="page_size=0 is not allowed; expected an integer from 1"):
        cache_of(page_size=0)
    with pytest.raises(UsageError, match="layout='NDH' is not allowed"):
        cache_of(layout="NDH")  # type: ignore[arg-type]
