"""``PagedKVCache`` against lists of tokens: what every sequence reads back, shared prefixes, and an empty pool."""

import random
import sys
from array import array
from typing import Any, Literal

import pytest
import torch

from autotune import OutOfPagesError, PagedKVCache, paged_cache
from autotune.errors import (
    InputMismatchError,
    MissingDependencyError,
    NotDifferentiableError,
    UnknownNameError,
    UsageError,
)
from autotune.kernels.paged_cache.layout import allocate_caches
from autotune.kernels.paged_cache.quantization import dequantize, quantize
from autotune.kernels.paged_decode.definition import DEFINITION
from autotune.kernels.paged_decode.inputs import empty_scales
from autotune.kernels.paged_decode.reference import gather_keys
from autotune.shape import PagedShape


def cache_of(
    pages: int = 8,
    page_size: int = 4,
    layout: Literal["NHD", "HND"] = "NHD",
    dtype: torch.dtype = torch.float32,
    head_dim_v: int = 16,
    **scales: torch.Tensor,
) -> PagedKVCache:
    return PagedKVCache(
        pages=pages, page_size=page_size, kv_heads=2, head_dim=8, head_dim_v=head_dim_v, layout=layout,
        dtype=dtype, device="cpu", **scales,
    )  # fmt: skip


def tokens(count: int, seed: int = 0, head_dim_v: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2, 8, generator=generator), torch.randn(count, 2, head_dim_v, generator=generator)


def read(cache: PagedKVCache, sequence: int) -> list[torch.Tensor]:
    """The tokens that a kernel would read of a sequence."""
    (pages,), (length,) = cache.page_table([sequence]), cache.seq_lens([sequence]).tolist()
    pools = ((cache.k_cache, cache.k_scale), (cache.v_cache, cache.v_scale))
    return [gather_keys(x, pages, length, layout=cache.layout, scale=y, dtype=torch.float32) for x, y in pools]


def stored(rows: torch.Tensor, cache: PagedKVCache, scale: torch.Tensor | None) -> torch.Tensor:
    """Tokens as they are once the cache has quantized them."""
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
@pytest.mark.parametrize("head_dim_v", [8, 16])  # of the first, keys and values share a buffer
def test_any_history_reads_back(layout: Literal["NHD", "HND"], kind: str, head_dim_v: int) -> None:
    """Two hundred random calls, against a list of tokens for each sequence."""
    rng = random.Random(f"{layout} {kind}")
    dtype, scales = KINDS[kind]
    cache = cache_of(20, 3, layout, dtype, head_dim_v, **scales)
    alive: dict[int, list[torch.Tensor]] = {}
    refused = 0
    for step in range(200):
        chosen = rng.choice(list(alive)) if alive else None
        action = rng.choice(["allocate", "append", "append", "append", "fork", "free"])
        if action == "allocate" or chosen is None:
            alive[cache.allocate()] = [torch.zeros(0, 2, 8), torch.zeros(0, 2, head_dim_v)]
        elif action == "append":
            added = tokens(rng.choice([1, 1, 2, 7]), step, head_dim_v)
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


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kv_dtype", ["float16", "int8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("head_dim_v", [8, 16])
def test_it_lies_in_memory_as_the_caches_that_kernels_are_tuned_on(
    layout: Literal["NHD", "HND"], kv_dtype: str, head_dim_v: int
) -> None:
    """Strides are constants of the kernels' binaries: those that are checked, timed and compiled ahead must serve."""
    shape = PagedShape(
        batch=2, heads=2, max_context=20, head_dim=8, head_dim_v=head_dim_v, page_size=4, dtype="float16",
        kv_dtype=kv_dtype, layout=layout,
    )  # fmt: skip
    tuned = DEFINITION.make_inputs(shape, seed=0, device="cpu")
    cache = cache_of(layout=layout, dtype=getattr(torch, kv_dtype), head_dim_v=head_dim_v)
    ahead = empty_scales(shape, (cache.k_cache, cache.v_cache))
    for ours, theirs, compiled in zip(
        (cache.k_cache, cache.v_cache, cache.k_scale, cache.v_scale),
        (tuned.k_cache, tuned.v_cache, tuned.k_scale, tuned.v_scale),
        (*allocate_caches(shape, 2, "meta"), *ahead),
        strict=True,
    ):
        if ours is None or theirs is None or compiled is None:
            assert ours is theirs is compiled is None
            assert kv_dtype == "float16"
            continue
        assert ours.stride() == theirs.stride() == compiled.stride()
        assert ours.shape[1:] == theirs.shape[1:] == compiled.shape[1:]
        assert ours.storage_offset() == theirs.storage_offset() == compiled.storage_offset()
    share = cache.k_cache.untyped_storage().data_ptr() == cache.v_cache.untyped_storage().data_ptr()
    assert share == (head_dim_v == 8)


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
    assert torch.equal(cache.k_scale, torch.ones(2))
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


def test_latents_are_their_own_values() -> None:
    sizes: dict[str, Any] = {"pages": 4, "page_size": 4, "kv_heads": 1, "head_dim": 288, "device": "cpu"}
    cache = PagedKVCache(**sizes, dtype=torch.float16)
    assert cache.v_cache.data_ptr() == cache.k_cache.data_ptr()
    assert cache.v_cache.shape == (4, 4, 1, 256)
    latents = torch.randn(6, 1, 288).half()
    first = cache.allocate()
    cache.append(first, latents[:5], latents[:5, :, :256])
    second = cache.fork(first)
    cache.append(second, latents[5:], latents[5:, :, :256])
    keys, values = read(cache, second)
    assert torch.equal(keys, latents.float())
    assert torch.equal(values, latents[..., :256].float())
    with pytest.raises(UsageError, match="dtype='int8' is not allowed for latents; expected that of queries"):
        PagedKVCache(**sizes, dtype="int8")
    with pytest.raises(UsageError, match="head_dim_v=288 is not allowed with head_dim=288"):
        PagedKVCache(**sizes, head_dim_v=288)


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
    with pytest.raises(UsageError, match="width=0 is not allowed; expected at least 1"):
        cache.page_table([empty], width=0)


def test_what_does_not_fit_is_refused() -> None:
    cache = cache_of(pages=2)
    sequence = cache.allocate()
    k, v = tokens(3)
    cache.append(sequence, k, v)
    with pytest.raises(OutOfPagesError, match="needs 2 more pages for 12 tokens, 1 of 2 are free; free a sequence"):
        cache.append(sequence, *tokens(9))
    assert cache.seq_lens([sequence]).tolist() == [3]
    with pytest.raises(InputMismatchError, match=r"v is \(3, 2, 8\) float32; expected \(3, 2, 16\) float32"):
        cache.append(sequence, k, k)
    with pytest.raises(InputMismatchError, match=r"v is \(2, 2, 16\)"):
        cache.append(sequence, k, v[:2])
    with pytest.raises(InputMismatchError, match=r"k is .* float16; expected .* float32"):
        cache.append(sequence, k.half(), v)
    other = cache_of(dtype=torch.int8)
    empty = other.allocate()
    with pytest.raises(InputMismatchError, match=r"k is .* int32; expected .* float16 or bfloat16 or float32"):
        other.append(empty, k.int(), v)
    cache.free(sequence)
    for call in (cache.free, cache.fork, lambda number: cache.page_table([number])):
        with pytest.raises(UnknownNameError, match="sequence=0 is unknown; it was never allocated, or was freed"):
            call(sequence)
    for given in ([1.0], None, torch.zeros(())):
        with pytest.raises(InputMismatchError, match=r"k is (a list|None|\(\) float32); expected (a tensor|\(2, 8\))"):
            other.append(empty, given, v)  # type: ignore[arg-type]
    with pytest.raises(InputMismatchError, match="v is on meta; expected cpu, where the cache is"):
        other.append(empty, k, v.to("meta"))


SIZES: dict[str, Any] = {"pages": 4, "page_size": 4, "kv_heads": 2, "head_dim": 8, "device": "cpu"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pages": 0}, "pages=0 is not allowed; expected an integer from 1"),
        ({"kv_heads": 2.0}, r"kv_heads=2\.0 is not allowed; expected an integer from 1"),
        ({"page_size": 0}, "page_size=0 is not allowed; expected an integer from 1 to 1024"),
        ({"page_size": 2048}, "page_size=2048 is not allowed; expected an integer from 1 to 1024"),
        ({"head_dim": 12}, "head_dim=12 is not allowed; expected a multiple of 8 from 8 to 256, or 512"),
        ({"head_dim_v": 7}, "head_dim_v=7 is not allowed; expected a multiple of 8 from 8 to 256"),
        ({"layout": "NDH"}, "layout='NDH' is not allowed; expected 'NHD' or 'HND'"),
        ({"dtype": torch.float64}, "^dtype=torch.float64 is unknown; allowed: float16"),
        ({"dtype": "int32"}, "^dtype='int32' is unknown; allowed: .* float8_e4m3fn \\(fp8, fp8_e4m3\\)"),
        ({"device": "tpu"}, "device='tpu' is not allowed; expected 'cuda', 'cuda:<index>' or 'cpu'"),
        ({"device": "meta"}, "device='meta' is not allowed"),
    ],
    ids=str,
)
def test_what_no_kernel_takes_is_no_cache(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PagedKVCache(**SIZES | changed)


def test_without_a_gpu_the_cpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_cache, "has_gpu", lambda: False)
    with pytest.raises(MissingDependencyError, match="device='cuda': no GPU is visible; device='cpu' needs none"):
        PagedKVCache(pages=4, page_size=4, kv_heads=2, head_dim=8)


def test_without_torch_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match="torch is not installed; `pip install torch triton`"):
        PagedKVCache(**SIZES)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [("int8", torch.int8), ("fp8", torch.float8_e4m3fn), ("BF16", torch.bfloat16), (torch.float16, torch.float16)],
)
def test_dtypes_have_names(given: torch.dtype | str, dtype: torch.dtype) -> None:
    assert PagedKVCache(**SIZES, dtype=given).k_cache.dtype == dtype
    assert PagedKVCache(**SIZES).k_cache.dtype == torch.bfloat16
    assert PagedKVCache(**SIZES, layout="hnd").layout == "HND"  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["k", "v"])
def test_gradients_are_refused(name: str) -> None:
    cache = cache_of()
    sequence = cache.allocate()
    given = dict(zip("kv", tokens(3), strict=True))
    given[name].requires_grad_()
    with pytest.raises(NotDifferentiableError, match=f"{name} requires gradients, and there is no backward kernel"):
        cache.append(sequence, **given)
    assert cache.seq_lens([sequence]).tolist() == [0]
    with torch.no_grad():
        cache.append(sequence, **given)
    assert not cache.k_cache.requires_grad
    assert not cache.v_cache.requires_grad
    assert cache.seq_lens([sequence]).tolist() == [3]


def test_no_tokens_change_nothing() -> None:
    cache = cache_of()
    sequence = cache.allocate()
    for count in (0, 4, 0):  # before, and at the end of, a page
        cache.append(sequence, *tokens(count))
    assert cache.free_pages == 7
    assert cache.page_table([]).shape == (0, 1)
    assert cache.seq_lens([]).shape == (0,)


def test_an_append_that_fails_leaves_forks_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PagedKVCache(**{**SIZES, "pages": 9}, dtype=torch.float32)
    first = cache.allocate()
    rows = torch.arange(6 * 16, dtype=torch.float32).view(6, 2, 8)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no room for indices")

    with monkeypatch.context() as patched:
        patched.setattr(PagedKVCache, "_places", fail)
        with pytest.raises(torch.OutOfMemoryError):
            cache.append(first, rows, rows)
    second = cache.fork(first)
    for sequence, change in ((first, 1.0), (second, 2.0)):
        cache.append(sequence, rows + change, rows)
    assert torch.equal(read(cache, first)[0], rows + 1.0)
    assert torch.equal(read(cache, second)[0], rows + 2.0)


def test_a_longer_sequence_uploads_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the pages that an append writes to are uploaded, and of a single one nothing."""
    uploaded: list[int] = []
    upload = PagedKVCache._upload

    def count_uploads(cache: PagedKVCache, integers: "array[int]") -> torch.Tensor:
        uploaded.append(len(integers))
        return upload(cache, integers)

    monkeypatch.setattr(PagedKVCache, "_upload", count_uploads)
    cache = cache_of(pages=20)
    sequence = cache.allocate()
    for count in (50, 1, 1, 1, 9, 2):  # 4 tokens a page
        cache.append(sequence, *tokens(count))
    assert uploaded == [13, 3]
    cache.page_table([sequence, cache.fork(sequence)])
    assert uploaded == [13, 3, 32]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")  # once a process, as it is turned on
@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8"])
def test_gpu_nothing_waits_for_it(dtype: str) -> None:
    cache = PagedKVCache(**SIZES | {"pages": 64, "device": "cuda"}, dtype=dtype)
    rows = [torch.randn(count, 2, 8, device="cuda").bfloat16() for count in (1, 30)]
    try:
        torch.cuda.set_sync_debug_mode("error")
        first = cache.allocate()
        for count in (1, 0, 1, 1):
            cache.append(first, rows[count], rows[count])
        cache.append(cache.fork(first), rows[0], rows[0])
        table, lengths = cache.page_table([first, 1]), cache.seq_lens([first, 1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert lengths.tolist() == [91, 92]
    assert table.tolist() == [[*range(23)], [*range(22), 23]]


def test_text_says_what_is_used() -> None:
    cache = cache_of(layout="HND")
    assert repr(cache) == ("<PagedKVCache: 0 sequences in 0 of 8 HND pages of 4, 2 heads of 8/16, torch.float32, cpu>")
    cache.append(cache.allocate(), *tokens(5))
    assert repr(cache).startswith("<PagedKVCache: 1 sequences in 2 of 8 HND pages")
