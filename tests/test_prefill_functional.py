"""``autotune.paged_prefill`` picks by its tensors; shapes of both paged operations find the one that solves them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import dispatch, paged_decode, paged_prefill
from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.errors import InputMismatchError, InvalidShapeError, UnknownNameError
from autotune.registry import get_implementation
from autotune.shape import PagedShape
from autotune.table import Served
from autotune.workload import operation_for
from tests import sample

HALF = torch.float16


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An H200 without tables; nothing is launched."""
    yield from sample.serve_untuned(monkeypatch, tmp_path)


@pytest.fixture
def picked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The operations and shapes that kernels are bound to, whose calls return what they were given."""
    found: list[tuple[str, Any]] = []

    class FakeKernel:
        def __init__(self, operation: str, implementation: str) -> None:
            self.name = operation

        def bind(self, config: object, shape: object) -> Callable[..., object]:
            found.append((self.name, shape))
            return lambda *tensors, **options: (tensors, options)

    monkeypatch.setattr(dispatch.kernel, "load_kernel", FakeKernel)
    return found


def tensors(layout: str = "NHD", **replaced: torch.Tensor) -> dict[str, Any]:
    middle = (16, 2) if layout == "NHD" else (2, 16)
    given = {
        "q": torch.zeros(90, 8, 64, dtype=HALF),
        "k_cache": torch.zeros(40, *middle, 64, dtype=HALF),
        "v_cache": torch.zeros(40, *middle, 32, dtype=HALF),
        "page_table": torch.zeros(3, 10, dtype=torch.int32),
        "seq_lens": torch.zeros(3, dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 1, 2, 90], dtype=torch.int32),
    }
    return given | replaced


SIZES: dict[str, Any] = {"batch": 3, "heads": 8, "kv_heads": 2, "head_dim": 64, "head_dim_v": 32, "dtype": "fp16"}


def test_the_pick_is_made_once_for_each_shape(picked: list[tuple[str, Any]]) -> None:
    for tokens in (90, 96, 70):  # means of 24 to 32 queries
        given, options = paged_prefill(**tensors(q=torch.zeros(tokens, 8, 64, dtype=HALF)), scale=2.0)
    assert len(given) == 6
    unset = {"softcap": None, "sinks": None, "alibi_slopes": None, "return_lse": False, "check": False}
    assert options == {"scale": 2.0, **unset}
    first = PagedShape(**SIZES, seq_q=32, max_context=256)  # 10 pages of 16, rounded up
    assert picked == [("paged_prefill", first)]
    paged_prefill(**tensors("HND"), layout="HND", mean_context=100, window=5)
    assert picked[-1][1] == replace(first, layout="HND", mean_context=104, window=5)
    paged_prefill(**tensors(), softcap=3.0, sinks=torch.zeros(8), alibi_slopes=torch.zeros(8))
    assert picked[-1][1] == replace(first, softcap=True, sinks=True, alibi=True)
    paged_prefill(**tensors(), causal=False)
    assert picked[-1][1] == replace(first, causal=False)
    caches = {name: tensors()[name].to(torch.int8) for name in ("k_cache", "v_cache")}
    scales: dict[str, Any] = {name: torch.ones(40, 16, 2) for name in ("k_scale", "v_scale")}
    _, options = paged_prefill(**tensors(**caches), **scales)
    assert picked[-1][1] == replace(first, kv_dtype="int8")
    assert options["k_scale"] is scales["k_scale"]
    assert options["v_scale"] is scales["v_scale"]


@pytest.mark.parametrize(("tokens", "seq_q"), [(0, 1), (3, 1), (4, 2), (24, 8)])
def test_few_queries_are_prefill_too(tokens: int, seq_q: int, picked: list[tuple[str, Any]]) -> None:
    paged_prefill(**tensors(q=torch.zeros(tokens, 8, 64, dtype=HALF)))
    assert picked == [("paged_prefill", PagedShape(**SIZES, seq_q=seq_q, max_context=256))]


def test_many_queries_are_no_decode() -> None:
    given = tensors(q=torch.zeros(3, 9, 8, 64, dtype=HALF))
    del given["cu_seqlens_q"]
    with pytest.raises(InvalidShapeError, match="seq_q=9 is not supported by paged_decode"):
        paged_decode(**given)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rank": (
        tensors(q=torch.zeros(3, 9, 8, 64)),
        InputMismatchError,
        r"have 4, 4, 4 and 2 dim.*expected \[T, H, D\], two",
    ),
    "cache": (tensors(k_cache=torch.zeros(8, 64)), InputMismatchError, "have 3, 2, 4 and 2 dimensions; expected"),
    "layout": ({**tensors(), "layout": "NDH"}, InvalidShapeError, "layout='NDH' is not allowed; expected 'NHD' or"),
    "KV type": (
        tensors(q=torch.zeros(90, 8, 64), k_cache=torch.zeros(40, 16, 2, 64, dtype=torch.int8)),
        InvalidShapeError,
        "kv_dtype='int8' is not supported by paged_prefill with dtype='float32'; expected float32",
    ),
    "no scale": (
        tensors() | {name: torch.zeros(40, 16, 2, 64, dtype=torch.int8) for name in ("k_cache", "v_cache")},
        InputMismatchError,
        r"k_scale is None; expected a float32 tensor of \(40, 16, 2\) for a cache of int8",
    ),
    "mask": ({**tensors(), "causal": "no"}, InvalidShapeError, "causal='no' is not allowed; expected True or False"),
    "type": (tensors(q=torch.zeros(90, 8, 64).double()), UnknownNameError, "dtype='float64'"),
    "heads": (tensors(q=torch.zeros(90, 7, 64).half()), InvalidShapeError, "heads=7 is not a multiple of kv_heads=2"),
    "value type": (tensors(v_cache=torch.zeros(40, 16, 2, 32)), InputMismatchError, "v_cache is .* float32"),
    "offsets": (tensors(cu_seqlens_q=torch.zeros(3, dtype=torch.int32)), InputMismatchError, "cu_seqlens_q is .*4"),
    "list": (tensors() | {"page_table": [[0]]}, InputMismatchError, "page_table is a list; expected a tensor"),
    "CPU": (tensors(), InputMismatchError, "the tensors are on the CPU; expected a GPU"),
}


@pytest.mark.parametrize(("given", "error", "message"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        paged_prefill(**given)


SHAPE = PagedShape(batch=4, heads=8, kv_heads=2, max_context=1024, head_dim=64)


@pytest.mark.parametrize(
    ("seq_q", "name"), [(1, "paged_decode"), (8, "paged_decode"), (9, "paged_prefill"), (2048, "paged_prefill")]
)
def test_the_first_operation_that_supports_a_shape_solves_it(seq_q: int, name: str) -> None:
    shape = replace(SHAPE, seq_q=seq_q)
    assert operation_for(shape).name == name
    assert get_kernel(shape).operation == name


def test_an_operation_can_be_asked_for_by_name() -> None:
    assert get_kernel(SHAPE, operation="paged_prefill").operation == "paged_prefill"
    with pytest.raises(InvalidShapeError, match="seq_q=9 is not supported by paged_decode"):
        get_kernel(replace(SHAPE, seq_q=9), operation="paged_decode")


def test_a_shape_that_none_supports_is_refused_with_every_reason() -> None:
    with pytest.raises(InvalidShapeError, match=r"by paged_decode.*; kv_dtype.* by paged_prefill"):
        get_kernel(replace(SHAPE, kv_dtype="float32"))


@pytest.mark.parametrize("seq_q", [1, 2048])
def test_a_mask_that_shows_all_keys_is_of_prefill(seq_q: int) -> None:
    shape = replace(SHAPE, seq_q=seq_q, causal=False)
    assert get_kernel(shape).operation == "paged_prefill"
    with pytest.raises(InvalidShapeError, match="causal=False is not supported by paged_decode; paged_prefill"):
        get_kernel(shape, operation="paged_decode")


def test_rows_of_one_operation_never_serve_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both operations take these shapes: a table's rows are looked up by the operation's name as well."""
    prefill = get_implementation("paged_prefill", "triton")
    config = next(iter(prefill.space.configs(SHAPE, NVIDIA_H200)))
    trial = sample.trial(chosen=config, operation="paged_prefill", shape=SHAPE)
    rows = {"paged_prefill": (Served(trial, "user"),)}
    with monkeypatch.context() as patch:
        patch.setattr(dispatch.answers, "rows_of", lambda operation, *_: rows.get(operation, ()))
        assert get_kernel(SHAPE).provenance.rung == "default"
        served = get_kernel(SHAPE, operation="paged_prefill")
    assert served.provenance.rung == "exact"
    assert served.config == config
