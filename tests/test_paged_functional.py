"""``autotune.paged_decode`` picks by its tensors; ``merge_attention`` is attention over the union of keys."""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import (
    append_kv,
    attention,
    dispatch,
    eager_calls,
    merge_attention,
    paged_decode,
    paged_prefill,
    platforms,
)
from autotune.errors import InputMismatchError, InvalidShapeError, MissingDependencyError, UnknownNameError
from autotune.shape import PagedShape
from tests import sample
from tests.kernels.paged_decode.numerics import dense_decode


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An H200 without tables; nothing is launched."""
    yield from sample.serve_untuned(monkeypatch, tmp_path)


@pytest.fixture
def picked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes that kernels are bound to, and what the last of these was called with."""
    shapes: list[Any] = []

    class FakeKernel:
        def bind(self, config: object, shape: object) -> Callable[..., object]:
            shapes.append(shape)
            return lambda *tensors, **options: (tensors, options)

    monkeypatch.setattr(dispatch.kernel, "load_kernel", lambda operation, implementation: FakeKernel())
    return shapes


def tensors(layout: str = "NHD", **replaced: torch.Tensor) -> dict[str, Any]:
    middle = (16, 2) if layout == "NHD" else (2, 16)
    given = {
        "q": torch.zeros(3, 8, 64, dtype=torch.float16),
        "k_cache": torch.zeros(40, *middle, 64, dtype=torch.float16),
        "v_cache": torch.zeros(40, *middle, 32, dtype=torch.float16),
        "page_table": torch.zeros(3, 10, dtype=torch.int32),
        "seq_lens": torch.zeros(3, dtype=torch.int32),
    }
    return given | replaced


def test_the_pick_is_made_once_for_each_shape(picked: list[Any]) -> None:
    sizes: dict[str, Any] = {"batch": 3, "heads": 8, "kv_heads": 2, "head_dim": 64, "head_dim_v": 32, "dtype": "fp16"}
    for _ in range(3):
        given, options = paged_decode(**tensors(), scale=2.0)
    assert len(given) == 5
    unset = dict.fromkeys(("softcap", "sinks", "alibi_slopes", "k_scale", "v_scale"))
    assert options == {"scale": 2.0, **unset, "return_lse": False, "check": False}
    assert picked == [PagedShape(**sizes, max_context=256)]  # 10 pages of 16, rounded up
    paged_decode(**tensors(page_table=torch.zeros(3, 16, dtype=torch.int32)))
    assert len(picked) == 1
    paged_decode(**tensors("HND"), layout="hnd")  # type: ignore[call-overload] # any case will do
    assert picked[-1] == PagedShape(**sizes, max_context=256, layout="HND")
    paged_decode(**tensors(q=torch.zeros(3, 4, 8, 64, dtype=torch.float16)), mean_context=100, window=5)
    assert picked[-1] == PagedShape(**sizes, max_context=256, mean_context=104, seq_q=4, window=5)
    paged_decode(**tensors(), softcap=3.0, sinks=torch.zeros(8), alibi_slopes=torch.zeros(8))
    assert picked[-1] == PagedShape(**sizes, max_context=256, softcap=True, sinks=True, alibi=True)


OPERATIONS = pytest.mark.parametrize("operation", [paged_decode, paged_prefill])


def given_to(operation: Callable[..., object]) -> dict[str, Any]:
    """Tensors of capacity 160, which is rounded up to 256."""
    return tensors() if operation is paged_decode else tensors(cu_seqlens_q=torch.zeros(4, dtype=torch.int32))


@OPERATIONS
def test_a_mean_that_moves_needs_few_picks(operation: Callable[..., object], picked: list[Any]) -> None:
    given = given_to(operation)
    for mean in range(1, 1000):
        count = len(picked)
        operation(**given, mean_context=mean)
        if mean <= 256 and len(picked) > count:  # each of these is the first that is rounded so
            assert abs(picked[-1].mean_context - mean) <= mean / 16
    found = [shape.mean_context for shape in picked]
    assert found[:15] == [*range(1, 16)]
    assert found[15:] == [*range(16, 32, 2), *range(32, 64, 4), *range(64, 128, 8), *range(128, 257, 16)]


@OPERATIONS
def test_a_mean_beyond_the_capacity_is_the_capacity(operation: Callable[..., object], picked: list[Any]) -> None:
    given = given_to(operation) | {"page_table": torch.zeros(3, 4, dtype=torch.int32)}
    for mean in (None, 64, 100, 2**40):
        operation(**given, mean_context=mean)
    assert [(shape.max_context, shape.mean_context) for shape in picked] == [(64, 64)]


@OPERATIONS
@pytest.mark.parametrize("mean", [0, -7, 9.0, True, "9"], ids=repr)
def test_a_mean_that_is_no_positive_integer_is_refused(operation: Callable[..., object], mean: object) -> None:
    with pytest.raises(InvalidShapeError, match=f"mean_context={mean!r} is not allowed; expected an integer from 1"):
        operation(**given_to(operation), mean_context=mean)


def quantized(dtype: torch.dtype, **replaced: torch.Tensor) -> dict[str, Any]:
    """As ``tensors``, with one-byte caches and scales that fit them."""
    given = tensors()
    caches = {name: given[name].to(dtype) for name in ("k_cache", "v_cache")}
    sizes = (40, 16, 2) if dtype == torch.int8 else (2,)
    return given | caches | {"k_scale": torch.ones(sizes), "v_scale": torch.ones(sizes)} | replaced


ONE_BYTE = [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", ONE_BYTE, ids=str)
def test_quantized_caches_have_a_pick_of_their_own(dtype: torch.dtype, picked: list[Any]) -> None:
    given = quantized(dtype)
    offsets = torch.arange(4, dtype=torch.int32)
    calls: list[tuple[Callable[..., Any], dict[str, Any]]]
    calls = [(paged_decode, {}), (paged_prefill, {"cu_seqlens_q": offsets})]
    for function, more in calls:
        options: Any = function(**given, **more)[1]
        assert picked[-1].kv_dtype == str(dtype).removeprefix("torch.")
        assert options["k_scale"] is given["k_scale"]
        assert options["v_scale"] is given["v_scale"]


@pytest.mark.parametrize("dtype", ONE_BYTE, ids=str)
def test_a_prefill_of_16_bits_takes_no_quantized_cache(dtype: torch.dtype) -> None:
    given = {name: tensor for name, tensor in quantized(dtype).items() if not name.endswith("scale")}
    offsets = torch.arange(4, dtype=torch.int32)
    with pytest.raises(InputMismatchError, match="k_scale is None; expected a float32 tensor of "):
        paged_prefill(**given, cu_seqlens_q=offsets)
    half = tensors() | {"cu_seqlens_q": offsets}
    shape = PagedShape(batch=3, heads=8, kv_heads=2, head_dim=64, head_dim_v=32, max_context=256, dtype="float16")
    kernel = dispatch.get_kernel(shape, operation="paged_prefill")
    with pytest.raises(InputMismatchError, match=r"k_cache is .*; this kernel takes .* float16"):
        kernel(**half | {"k_cache": given["k_cache"]})


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rank": (tensors(q=torch.zeros(8, 64)), InputMismatchError, "have 2, 4, 4 and 2 dimensions; expected"),
    "layout": ({**tensors(), "layout": "NDH"}, InvalidShapeError, "layout='NDH' is not allowed; expected 'NHD' or"),
    "scale of a number": (
        quantized(torch.int8) | {"k_scale": 0.5},
        InputMismatchError,
        r"k_scale is 0.5; expected a float32 tensor of \(40, 16, 2\) for a cache of int8",
    ),
    "needless scale": (
        tensors(v_scale=torch.ones(2)),
        InputMismatchError,
        r"v_scale is \(2,\) float32; expected None for a cache of float16",
    ),
    "no scale": (
        tensors(**{name: tensors()[name].char() for name in ("k_cache", "v_cache")}),
        InputMismatchError,
        r"k_scale is None; expected a float32 tensor of \(40, 16, 2\) for a cache of int8",
    ),
    "scale sizes": (
        quantized(torch.int8, v_scale=torch.ones(2)),
        InputMismatchError,
        r"v_scale is \(2,\) float32; expected a float32 tensor of \(40, 16, 2\) for a cache of int8",
    ),
    "scale type": (
        quantized(torch.float8_e5m2, k_scale=torch.ones(()).half()),
        InputMismatchError,
        r"k_scale is \(\) float16; expected a float32 tensor of \(\) or \(2,\) for a cache of float8_e5m2",
    ),
    "queries": (
        tensors(q=torch.zeros(3, 9, 8, 64).half()),
        InvalidShapeError,
        "seq_q=9 is not supported by paged_decode; expected 1 to 8",
    ),
    "KV type": (
        quantized(torch.int8, q=torch.zeros(3, 8, 64)),
        InvalidShapeError,
        "kv_dtype='int8' is not supported by paged_decode with dtype='float32'; expected float32$",
    ),
    "wider KV type": (
        tensors(k_cache=torch.zeros(40, 16, 2, 64)),
        InvalidShapeError,
        "kv_dtype='float32' is not supported by paged_decode with dtype='float16'; expected float16, ",
    ),
    "quantized CPU": (quantized(torch.float8_e4m3fn), InputMismatchError, "the tensors are on the CPU"),
    "type": (tensors(q=torch.zeros(3, 8, 64).double()), UnknownNameError, "dtype='float64'"),
    "heads": (tensors(q=torch.zeros(3, 7, 64).half()), InvalidShapeError, "heads=7 is not a multiple of kv_heads=2"),
    "no KV heads": (
        tensors(k_cache=torch.zeros(40, 16, 0, 64).half(), v_cache=torch.zeros(40, 16, 0, 32).half()),
        InvalidShapeError,
        "kv_heads=0 is not allowed",
    ),
    "layout of the cache": (
        tensors() | {"layout": "HND"},
        InputMismatchError,
        "k_cache has 16 KV heads as layout='HND', .* 8 heads of q are no multiple; as layout='NHD' it has 2",
    ),
    "bytes": (
        quantized(torch.uint8),
        InputMismatchError,
        r"k_cache and v_cache are uint8, .*; expected a view of their type, as k_cache.view\(torch.float8_e4m3fn\)",
    ),
    "value type": (tensors(v_cache=torch.zeros(40, 16, 2, 32)), InputMismatchError, "v_cache is .* float32"),
    "list": (tensors() | {"q": [1.0]}, InputMismatchError, "q is a list; expected a tensor"),
    "CPU": (tensors(), InputMismatchError, "the tensors are on the CPU; expected a GPU"),
}


@pytest.mark.parametrize(("given", "error", "message"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        paged_decode(**given)


NO_SEQUENCES: dict[str, torch.Tensor] = {
    "q": torch.zeros(0, 8, 64).half(),
    "page_table": torch.zeros(0, 10, dtype=torch.int32),
    "seq_lens": torch.zeros(0, dtype=torch.int32),
}
NO_OFFSETS = torch.zeros(1, dtype=torch.int32)


def of_nothing(operation: Callable[..., Any], **replaced: Any) -> Any:
    offsets = {} if operation is paged_decode else {"cu_seqlens_q": NO_OFFSETS}
    return operation(**tensors() | NO_SEQUENCES | offsets | replaced)


@OPERATIONS
def test_no_sequences_need_no_kernel(operation: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)  # nothing is launched
    monkeypatch.setattr(eager_calls, "pick_for_device", None)
    out, lse = of_nothing(operation, return_lse=True, sinks=torch.zeros(8), check=True)
    assert (out.shape, out.dtype) == ((0, 8, 32), torch.float16)
    assert (lse.shape, lse.dtype) == ((0, 8), torch.float32)
    buffer = torch.empty(0, 8, 32).half()
    assert of_nothing(operation, out=buffer) is buffer
    on_meta = {name: each.to("meta") for name, each in (tensors() | NO_SEQUENCES).items()}
    offsets = {} if operation is paged_decode else {"cu_seqlens_q": NO_OFFSETS.to("meta")}
    assert operation(**on_meta, **offsets).shape == (0, 8, 32)
    if operation is paged_decode:
        assert of_nothing(operation, q=torch.zeros(0, 4, 8, 64).half()).shape == (0, 4, 8, 32)
    else:  # what lies past the last offset is left as it is
        behind = torch.ones(5, 8, 32).half()
        assert of_nothing(operation, q=torch.zeros(5, 8, 64).half(), out=behind) is behind
        assert behind.all()


@OPERATIONS
@pytest.mark.parametrize(
    ("replaced", "error", "message"),
    [
        ({"q": torch.zeros(0, 7, 64).half()}, InvalidShapeError, "heads=7 is not a multiple of kv_heads=2"),
        ({"q": torch.zeros(0, 8, 12).half()}, InvalidShapeError, "head_dim=12 is not allowed"),
        ({"q": torch.zeros(0, 8, 32).half()}, InputMismatchError, r"k_cache is .* takes \(any, 16, 2, 32\) float16"),
        ({"q": torch.zeros(0, 64).half()}, InputMismatchError, "have 2, 4, 4 and 2 dimensions"),
        ({"v_cache": torch.zeros(40, 16, 2, 32)}, InputMismatchError, "v_cache is .* float32"),
        (
            {"seq_lens": torch.zeros(1, dtype=torch.int32)},
            InputMismatchError,
            r"seq_lens is \(1,\) int32; .* \(0\) int32",
        ),
        ({"seq_lens": torch.zeros(0)}, InputMismatchError, r"seq_lens is \(0,\) float32; .* \(0\) int32"),
        ({"window": 0}, InvalidShapeError, "window=0 is not allowed"),
        ({"scale": -1.0}, InputMismatchError, "scale=-1.0 is not allowed"),
        ({"sinks": torch.zeros(7)}, InputMismatchError, r"sinks is \(7,\) float32"),
        (
            {"out": torch.empty(0, 8, 64).half()},
            InputMismatchError,
            r"out is \(0, 8, 64\) float16; expected \(0, 8, 32\)",
        ),
        ({"layout": "NDH"}, InvalidShapeError, "layout='NDH' is not allowed"),
    ],
)
def test_no_sequences_are_refused_as_others_are(
    operation: Callable[..., Any],
    replaced: dict[str, Any],
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)
    with pytest.raises(error, match=message):
        of_nothing(operation, **replaced)


def test_queries_of_no_sequence_beside_pages_of_some_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)
    with pytest.raises(InputMismatchError, match=r"page_table is \(3, 10\) int32; this kernel takes \(0, any\) int32"):
        paged_decode(**tensors(q=NO_SEQUENCES["q"]))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return dense_decode(q, k, v, scale=0.3)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_merged_results_are_attention_over_all_keys(parts: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*sizes, generator=generator).double() for sizes in ((1, 6, 8), (50, 2, 8), (50, 2, 4)))
    expected, expected_lse = attend(q, k, v)
    pieces = [attend(q, *piece) for piece in zip(k.chunk(parts), v.chunk(parts), strict=True)]
    outs, lses = zip(*pieces, strict=True)
    for merged, lse in (merge_attention(outs, lses), merge_attention(torch.stack(outs), torch.stack(lses))):
        torch.testing.assert_close(merged, expected, rtol=0, atol=1e-13)
        torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-13)


@pytest.mark.parametrize("queries", [4, 6])
def test_logarithms_laid_out_as_attention_returns_them_are_merged(queries: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, 4, 8, generator=generator).double() for n in (queries, 12, 12))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
    pieces = [
        (torch.einsum("bhqk,bkhd->bqhd", scores[..., keys].softmax(-1), v[:, keys]), scores[..., keys].logsumexp(-1))
        for keys in (slice(0, 12), slice(0, 5), slice(5, 12))
    ]
    (expected, expected_lse), *parts = pieces
    merged, lse = merge_attention(*zip(*parts, strict=True), lse_layout="BHS")
    torch.testing.assert_close(merged, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-13)


def test_empty_parts_count_for_nothing() -> None:
    out = torch.tensor([[[1.0, 2.0], [math.nan, math.nan]], [[math.nan, math.nan]] * 2]).half()
    lse = torch.tensor([[3.0, -math.inf], [-math.inf, -math.inf]])
    merged, merged_lse = merge_attention(out, lse)
    assert merged.dtype == torch.float16
    assert merged.tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert merged_lse.tolist() == [3.0, -math.inf]


def test_parts_of_other_sizes_are_refused() -> None:
    with pytest.raises(InputMismatchError, match=r"outs is \(2, 3, 4\) and lses \(2, 4\); expected \[n, \.\.\., D\]"):
        merge_attention(torch.zeros(2, 3, 4), torch.zeros(2, 4))
    out, lse = torch.zeros(3, 4), torch.zeros(3)
    for given, message in (
        (([], []), "outs is empty; expected one result at least"),
        ((torch.zeros(0, 3, 4), torch.zeros(0, 3)), "outs is empty; expected one result at least"),
        (([out, out], []), "lses is empty"),
        (
            ([out, out], [lse, lse[:2]]),
            r"lses\[1\] is \(2,\) on cpu, lses\[0\] \(3,\) on cpu; expected one size and one",
        ),
        (([out, out.to("meta")], [lse, lse]), r"outs\[1\] is \(3, 4\) on meta, outs\[0\] \(3, 4\) on cpu; expected"),
        (([out, 1.0], [lse, lse]), r"outs\[1\] is 1.0; expected a tensor"),
    ):
        with pytest.raises(InputMismatchError, match=message):
            merge_attention(*given)
    with pytest.raises(InputMismatchError, match=r"lses \(2, 3, 4\); expected \[n, \.\.\., S, H, D\] and .*'BHS'"):
        merge_attention(torch.zeros(2, 3, 4, 8), torch.zeros(2, 3, 4), lse_layout="BHS")
    with pytest.raises(UnknownNameError, match="lse_layout='bhs' is not allowed; expected 'BSH' or 'BHS'"):
        merge_attention(out[None], lse[None], lse_layout="bhs")  # type: ignore[arg-type]


def test_without_torch_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match="torch is not installed; `pip install torch triton`"):
        merge_attention([], [])
    with pytest.raises(MissingDependencyError, match="torch is not installed"):
        append_kv(*[torch.zeros(())] * 5)


def test_tensors_on_the_cpu_are_what_is_wrong_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise MissingDependencyError("no GPU is visible")

    monkeypatch.setattr(platforms, "current_device", refuse)
    dense = torch.zeros(1, 8, 2, 16)
    offsets = torch.arange(4, dtype=torch.int32)
    calls: list[Callable[[], object]] = [
        lambda: paged_decode(**tensors()),
        lambda: paged_decode(**quantized(torch.float8_e4m3fn)),
        lambda: paged_prefill(**tensors(), cu_seqlens_q=offsets),
        lambda: attention(dense, dense, dense),
        lambda: append_kv(dense[0], dense[0], dense, dense, torch.arange(8)),
    ]
    message = "the tensors are on the CPU; expected a GPU (or TRITON_INTERPRET=1, to check numbers)"
    for call in calls:
        with pytest.raises(InputMismatchError) as caught:
            call()
        assert str(caught.value) == message


def test_without_triton_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingDependencyError, match="triton is not installed; `pip install torch triton`"):
        paged_decode(**tensors())
