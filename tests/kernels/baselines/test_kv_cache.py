"""Contiguous caches step by step, and the baseline over the framework's paged inputs, against fp64."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from autotune.correctness import error_limit
from autotune.errors import BaselineUnavailableError, InputMismatchError, UsageError
from autotune.executor.worker_race import hold
from autotune.kernels.baselines.baseline import OverCopies
from autotune.kernels.baselines.kv_cache import ContiguousCache, GrowingCache, KVCache, StaticCache, gather_pages
from autotune.kernels.paged_decode.definition import DEFINITION
from autotune.kernels.paged_decode.inputs import CheckShape
from autotune.kernels.paged_prefill.definition import DEFINITION as PREFILL
from autotune.kernels.paged_prefill.inputs import check_shape
from autotune.operation import Baseline
from autotune.shape import AttentionShape, PagedShape
from tests.kernels.numerics import compare, dense_attention

BATCH, HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM_V, CAPACITY = 2, 4, 2, 16, 24, 12


def static(dtype: torch.dtype = torch.float32) -> KVCache:
    sizes: dict[str, Any] = {"batch": BATCH, "capacity": CAPACITY, "kv_heads": KV_HEADS}
    cache = StaticCache(**sizes, head_dim=HEAD_DIM, head_dim_v=HEAD_DIM_V, dtype=dtype)
    for memory in (cache._keys, cache._values):
        memory.fill_(torch.nan)  # what was never written
    return cache


CACHES: Final[dict[str, Callable[[], KVCache]]] = {"growing": GrowingCache, "static": static}
by_cache = pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """pytest's workers take the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def draw(length: int, heads: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(BATCH, length, heads, width, generator=torch.Generator().manual_seed(seed))


def step(cache: KVCache, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = draw(length, KV_HEADS, HEAD_DIM, seed), draw(length, KV_HEADS, HEAD_DIM_V, seed + 1)
    cache.append(k, v)
    return k, v


@by_cache
@pytest.mark.parametrize("scale", [None, 0.7])
def test_steps_are_attention_over_all_positions_so_far(make: Callable[[], KVCache], scale: float | None) -> None:
    cache = make()
    for start in (0, 100):  # the second time after a reset
        keys, values = [], []
        for number, length in enumerate((5, 1, 1, 3, 2)):  # a prompt, steps, several positions at once
            k, v = step(cache, length, start + 2 * number)
            keys.append(k)
            values.append(v)
            assert cache.length == sum(part.shape[1] for part in keys)
            q = draw(length, HEADS, HEAD_DIM, start + 50 + number)
            expected, _ = dense_attention(
                q, torch.cat(keys, 1), torch.cat(values, 1), causal=True, scale=scale or HEAD_DIM**-0.5
            )
            out = cache.attend(q, scale=scale)
            assert out.shape == (BATCH, length, HEADS, HEAD_DIM_V)
            assert torch.allclose(out.double(), expected, rtol=0.0, atol=2e-6)
        cache.reset()
        assert cache.length == 0


@by_cache
def test_one_step_sees_no_position_twice(make: Callable[[], KVCache]) -> None:
    whole, parts = make(), make()
    k, v = draw(6, KV_HEADS, HEAD_DIM), draw(6, KV_HEADS, HEAD_DIM_V, 1)
    whole.append(k, v)
    for position in range(6):
        parts.append(k[:, position : position + 1], v[:, position : position + 1])
    q = draw(6, HEADS, HEAD_DIM, 2)
    assert torch.equal(whole.attend(q), parts.attend(q))


def test_growing_copies_and_static_does_not() -> None:
    growing, fixed = GrowingCache(), static()
    assert isinstance(fixed, StaticCache)
    for number in range(2):
        addresses = [fixed._keys.data_ptr(), None if growing._keys is None else growing._keys.data_ptr()]
        held = growing._keys
        for cache in (growing, fixed):
            step(cache, 1, number)
        assert growing._keys is not None
        assert fixed._keys.data_ptr() == addresses[0]
        assert growing._keys.data_ptr() != addresses[1]
        assert held is None or held.shape[2] == growing._keys.shape[2] - 1


@by_cache
def test_what_was_appended_is_no_view_of_the_caller_s(make: Callable[[], KVCache]) -> None:
    cache = make()
    k, v = step(cache, 3, 0)
    q = draw(3, HEADS, HEAD_DIM, 9)
    before = cache.attend(q)
    k.zero_()
    v.zero_()
    assert torch.equal(cache.attend(q), before)


def test_a_full_cache_refuses_and_stays_as_it_was() -> None:
    cache = static()
    step(cache, 10, 0)
    q = draw(1, HEADS, HEAD_DIM)
    before = cache.attend(q)
    with pytest.raises(UsageError, match="k has 3 positions, the cache 10; expected at most capacity=12 in all"):
        step(cache, 3, 1)
    assert cache.length == 10
    assert torch.equal(cache.attend(q), before)
    step(cache, 2, 1)
    assert cache.length == CAPACITY


@by_cache
def test_what_does_not_fit_is_named(make: Callable[[], KVCache]) -> None:
    cache = make()
    q = draw(1, HEADS, HEAD_DIM)
    with pytest.raises(InputMismatchError, match="append the queries' own keys"):
        cache.attend(q)
    step(cache, 2, 0)
    k, v = draw(1, KV_HEADS, HEAD_DIM), draw(1, KV_HEADS, HEAD_DIM_V)
    bad: list[tuple[torch.Tensor, torch.Tensor, str]] = [
        (k[:1], v[:1], r"k is \(1, 1, 2, 16\) .*; expected \(2, 1, 2, 16\) torch.float32 on cpu"),
        (k[:, :, :1], v[:, :, :1], r"k is \(2, 1, 1, 16\)"),
        (k, v[..., :16], r"v is \(2, 1, 2, 16\) .*; expected \(2, 1, 2, 24\)"),
        (k.half(), v, r"k is .* torch.float16 on cpu; expected .* torch.float32"),
        (k, draw(2, KV_HEADS, HEAD_DIM_V), r"k is \(2, 1, 2, 16\), v \(2, 2, 2, 24\); expected \[B, S, H_kv, D\]"),
        (k[0], k[0], r"expected \[B, S, H_kv, D\]"),
    ]
    for keys, values, message in bad:
        with pytest.raises(InputMismatchError, match=message):
            cache.append(keys, values)
    with pytest.raises(InputMismatchError, match="q has 3 positions, the cache 2"):
        cache.attend(draw(3, HEADS, HEAD_DIM))
    assert cache.length == 2


SHAPE: Final = PagedShape(batch=5, heads=6, kv_heads=2, max_context=70, head_dim=32, page_size=16, dtype="bfloat16")
LENGTHS: Final = (70, 0, 1, 16, 33)
SHAPES: Final = {
    "nhd": SHAPE,
    "hnd": replace(SHAPE, layout="HND"),
    "fp32": replace(SHAPE, dtype="float32", kv_dtype="float32"),
    "fp16-mha": replace(SHAPE, kv_heads=6, dtype="float16", kv_dtype="float16"),
    "page-1": replace(SHAPE, page_size=1, layout="HND"),
    "page-128": replace(SHAPE, page_size=128),
    "narrow-values": replace(SHAPE, head_dim_v=16),
    "window": replace(SHAPE, window=9),
    "three-queries": replace(SHAPE, seq_q=3),
    "three-queries-window": replace(SHAPE, seq_q=3, window=9, layout="HND"),
}


def draw_paged(
    shape: PagedShape, lengths: tuple[int, ...] = LENGTHS, *, device: str = "cpu", data: str = "normal"
) -> Any:
    fields: dict[str, Any] = shape.as_dict()
    return DEFINITION.make_inputs(CheckShape(**fields, lengths=lengths), seed=0, device=device, data=data)


def failure(shape: PagedShape, inputs: Any) -> str | None:
    out = ContiguousCache().prepare(shape, inputs)()
    expected, rounded = (DEFINITION.reference(inputs, dtype=dtype)[0] for dtype in (None, inputs.q.dtype))
    if (out.shape, out.dtype) != (expected.shape, inputs.q.dtype):
        return f"the output is {tuple(out.shape)} {out.dtype}"
    return compare(out, expected, error_limit(expected, rounded, inputs.q.dtype))


@pytest.mark.parametrize("lengths", [LENGTHS, (16, 16, 16, 16, 16), (0, 0, 0, 0, 0)], ids=["ragged", "equal", "none"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_baseline_is_that_of_fp64(shape: PagedShape, lengths: tuple[int, ...]) -> None:
    assert failure(shape, draw_paged(shape, lengths)) is None


@pytest.mark.parametrize("data", ["large", "tails"])
def test_the_baseline_is_that_of_fp64_on_hard_numbers(data: str) -> None:
    assert failure(SHAPE, draw_paged(SHAPE, data=data)) is None


def test_the_baseline_has_the_inputs_scale() -> None:
    inputs = replace(draw_paged(SHAPE), scale=0.5)
    assert failure(SHAPE, inputs) is None


def test_queries_without_keys_are_0_whatever_torch_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    attention: Any = torch.nn.functional.scaled_dot_product_attention

    def undefined(*args: Any, attn_mask: torch.Tensor, **options: Any) -> torch.Tensor:
        out: torch.Tensor = attention(*args, attn_mask=attn_mask, **options)
        return out.masked_fill(attn_mask.isneginf().all(3, keepdim=True), torch.nan)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", undefined)
    shape = replace(SHAPE, seq_q=3)
    assert failure(shape, draw_paged(shape)) is None


def passed_to_torch(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments that torch's attention is called with from now on."""
    attention: Any = torch.nn.functional.scaled_dot_product_attention
    found: list[dict[str, Any]] = []

    def record(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
        found.append({"q": q, "k": k, **options})
        return attention(q, k, v, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
    return found


@pytest.mark.parametrize("seq_q", [1, 3])
def test_with_a_mask_nothing_is_asked_that_only_the_math_backend_does(
    monkeypatch: pytest.MonkeyPatch, seq_q: int
) -> None:
    """On a GPU: no groups, a mask in the queries' dtype whose rows begin at multiples of 8, heads as they are."""
    passed = passed_to_torch(monkeypatch)
    shape = replace(SHAPE, seq_q=seq_q)
    inputs = draw_paged(shape)
    call = ContiguousCache().prepare(shape, inputs)
    assert isinstance(call, OverCopies)
    call()
    cache = static()
    step(cache, 7, 0)
    if seq_q > 1:
        cache.attend(draw(seq_q, HEADS, HEAD_DIM))
    assert len(passed) == (1 if seq_q == 1 else 2)
    for options in passed:
        q, k, mask = options["q"], options["k"], options["attn_mask"]
        assert options["enable_gqa"] is False
        assert q.shape[1] == k.shape[1]
        assert mask.dtype == q.dtype
        assert mask.stride(-1) == 1
        assert all(stride % 8 == 0 for stride in mask.stride()[:-1])
    assert passed[0]["k"].data_ptr() in [copy.data_ptr() for copy in call.copies]
    inputs = draw_paged(shape, (16,) * 5)
    if seq_q == 1:  # without a mask a fused backend takes groups
        ContiguousCache().prepare(shape, inputs)()
        assert (passed[-1]["attn_mask"], passed[-1]["enable_gqa"]) == (None, True)


@pytest.mark.gpu
@pytest.mark.parametrize("seq_q", [1, 3])
def test_gpu_takes_a_mask_and_groups_without_the_math_backend(seq_q: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    shape = replace(SHAPE, seq_q=seq_q)
    inputs = draw_paged(shape, device="cuda")
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
        assert failure(shape, inputs) is None


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gpu_baseline_is_that_of_fp64(shape: PagedShape) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    assert failure(shape, draw_paged(shape, device="cuda")) is None


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_pages_are_gathered_in_order_and_padded_with_zeros(layout: str) -> None:
    pages = torch.arange(5.0)[:, None, None, None].expand(5, 4, 1, 1) * 10 + torch.arange(4.0)[None, :, None, None]
    cache = pages if layout == "NHD" else pages.transpose(1, 2)
    table = torch.tensor([[3, 1, -1], [4, 10**6, -1]], dtype=torch.int32)
    found = gather_pages(cache, table, torch.tensor([6, 3], dtype=torch.int32), layout=layout)
    assert found[:, 0, :, 0].tolist() == [[30, 31, 32, 33, 10, 11], [40, 41, 42, 0, 0, 0]]


def test_a_call_gathers_nothing_and_follows_its_queries() -> None:
    inputs = draw_paged(SHAPE)
    call = ContiguousCache().prepare(SHAPE, inputs)
    first = call()
    for given in (inputs.k_cache, inputs.v_cache):
        given.fill_(torch.nan)
    assert torch.equal(call(), first)
    inputs.q.neg_()
    assert not torch.equal(call(), first)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_padding_is_memory_of_its_own(layout: str) -> None:
    """The copies of the pages in use stand for these; what they take beyond, and the mask, stands for nothing."""
    shape = replace(SHAPE, head_dim_v=2 * SHAPE.head_dim, layout=layout)
    inputs = draw_paged(shape, (1, 17, 64, 16, 33))
    call, held = hold(lambda: ContiguousCache().prepare(shape, inputs), "cpu")
    assert isinstance(call, OverCopies)
    page = shape.page_size * shape.kv_heads * 3 * shape.head_dim * 2
    copies, pages = 5 * 4 * page, (1 + 2 + 4 + 1 + 3) * page
    assert (sum(copy.nbytes for copy in call.copies), call.input_bytes) == (copies, pages)
    mask, blind = 5 * 64 * 2, 5
    assert held == copies - pages + mask + blind


def test_copies_of_less_than_the_pages_are_no_memory_of_its_own() -> None:
    inputs = draw_paged(SHAPE, (17,) * 5)
    call, held = hold(lambda: ContiguousCache().prepare(SHAPE, inputs), "cpu")
    assert isinstance(call, OverCopies)
    assert call.input_bytes == sum(copy.nbytes for copy in call.copies)
    assert held == 5  # which queries see no key


REASONS: Final = {
    "quantized": (replace(SHAPE, kv_dtype="int8"), "kv_dtype=int8: contiguous cache has the queries' dtype, bfloat16"),
    "softcap": (replace(SHAPE, softcap=True), "softcap=True: "),
    "sinks": (replace(SHAPE, sinks=True), "sinks=True: "),
    "alibi": (replace(SHAPE, alibi=True), "alibi=True: "),
    "dense": (AttentionShape(batch=1, heads=2, seq_q=8, head_dim=16), "AttentionShape: contiguous cache computes a "),
}


@pytest.mark.parametrize(("shape", "reason"), REASONS.values(), ids=REASONS)
def test_what_it_cannot_do_has_a_reason(shape: Any, reason: str) -> None:
    found = ContiguousCache().unsupported(shape)
    assert found is not None
    assert found.startswith(reason)
    with pytest.raises(BaselineUnavailableError) as caught:
        ContiguousCache().prepare(shape, None)  # type: ignore[arg-type]
    assert str(caught.value) == found


def test_packed_queries_are_refused() -> None:
    inputs = PREFILL.make_inputs(check_shape(SHAPE, (16, 33), (3, 4)), seed=0, device="cpu")
    with pytest.raises(BaselineUnavailableError, match=r"q is \(7, 6, 32\), packed: contiguous cache takes"):
        ContiguousCache().prepare(SHAPE, inputs)


def test_it_is_a_baseline_that_needs_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    baseline: Baseline = ContiguousCache()
    assert (baseline.name, baseline.is_usual, baseline.available()) == ("contiguous cache", False, None)
    for shape in SHAPES.values():
        assert baseline.unsupported(shape) is None
