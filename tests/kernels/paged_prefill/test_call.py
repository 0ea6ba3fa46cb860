"""The callable that users get: its results, and what it refuses before anything is launched."""

from typing import Any

import pytest
import torch

from autotune.errors import InputMismatchError, InvalidShapeError, NotDifferentiableError
from autotune.kernels.paged_prefill.triton import KERNEL
from autotune.kernels.tensors import check_offsets
from autotune.shape import PagedShape
from tests.contract.implementations.paged_prefill_triton import TINY
from tests.contract.interpreting import interpret
from tests.kernels.paged_prefill.numerics import call_failure

HALF = torch.float16
SIZES: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 2, "max_context": 64, "head_dim": 16, "head_dim_v": 24}
CALL = KERNEL.bind(TINY, PagedShape(**SIZES, seq_q=4, page_size=8, dtype="float16"))


def tensors(**replaced: Any) -> dict[str, Any]:
    sizes = {"q": (7, 4, 16), "k_cache": (9, 8, 2, 16), "v_cache": (9, 8, 2, 24)}
    integers = {
        "page_table": torch.zeros(2, 5, dtype=torch.int32),
        "seq_lens": torch.ones(2, dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 3, 7], dtype=torch.int32),
    }
    return {name: torch.zeros(size, dtype=HALF) for name, size in sizes.items()} | integers | replaced


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"q": torch.zeros(1, 7, 4, 16, dtype=HALF)}, r"q is \(1, 7, 4, 16\) float16; .* takes \(any, 4, 16\)"),
    "heads": ({"q": torch.zeros(7, 2, 16, dtype=HALF)}, r"q is \(7, 2, 16\) float16; this kernel takes \(any, 4, 16\)"),
    "dtype": ({"q": torch.zeros(7, 4, 16)}, r"q is \(7, 4, 16\) float32; this kernel takes .* float16"),
    "layout": (
        {"k_cache": torch.zeros(9, 2, 8, 16, dtype=HALF)},
        r"k_cache is \(9, 2, 8, 16\) float16; this kernel takes \(any, 8, 2, 16\) float16 \(NHD\)",
    ),
    "pages": ({"v_cache": torch.zeros(8, 8, 2, 24, dtype=HALF)}, "k_cache has 9 pages and v_cache 8; expected as many"),
    "offsets of another batch": (
        {"cu_seqlens_q": torch.zeros(2, dtype=torch.int32)},
        r"cu_seqlens_q is \(2\,\) int32; this kernel takes \(3\) int32",
    ),
    "offset dtype": ({"cu_seqlens_q": torch.zeros(3, dtype=torch.int64)}, r"cu_seqlens_q is \(3,\) int64; .* int32"),
    "stride": ({"q": torch.zeros(7, 16, 4, dtype=HALF).mT}, r"q has the strides .*; expected 1 in the last dimension"),
    "device": (
        {"cu_seqlens_q": torch.ones(3, dtype=torch.int32, device="meta")},
        "cu_seqlens_q on meta; expected one device",
    ),
    "zero scale": ({"scale": 0.0}, r"scale=0.0 is not allowed; expected a positive number"),
    "cap of another shape": ({"softcap": 20.0}, r"softcap=20.0; this kernel was picked without one"),
    "sinks of another shape": ({"sinks": torch.zeros(4)}, r"sinks is given; this kernel was picked for sinks=False"),
    "offsets of Python": ({"cu_seqlens_q": [0, 3, 7]}, r"cu_seqlens_q is a list; this kernel takes \(3\) int32"),
    "field of the shape": ({"window": 5}, "window is no option of the call but a field of PagedShape"),
    "mask of the shape": ({"causal": False}, "causal is no option of the call but a field of PagedShape"),
    "unknown option": (
        {"k_scales": torch.ones(())},
        "k_scales is no option of this kernel; allowed: scale, softcap, sinks, alibi_slopes, k_scale, v_scale, return",
    ),
    "scale of nothing": ({"k_scale": torch.ones(())}, r"k_scale is \(\) float32; expected None for a cache of float16"),
    "no GPU": ({}, r"the tensors are on the CPU; expected a GPU"),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=[name.replace(" ", "-") for name in BAD])
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        CALL(**tensors(**changed))


def test_gradients_are_refused() -> None:
    with pytest.raises(NotDifferentiableError, match="no backward kernel"):
        CALL(**tensors(q=torch.zeros(7, 4, 16, dtype=HALF, requires_grad=True)))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 3, 7], None),
        ([0, 0, 7], None),
        ([1, 3, 7], "cu_seqlens_q begins with 1 and ends with 7; expected 0 and the 7 queries"),
        ([0, 3, 6], "begins with 0 and ends with 6; expected 0 and the 7 queries"),
        ([0, 8, 7], r"cu_seqlens_q\[2\]=7 is less than 8 before it; expected offsets that never fall"),
        ([0, -1, 7], r"cu_seqlens_q\[1\]=-1 is less than 0 before it"),
    ],
)
def test_offsets_are_read_on_demand(offsets: list[int], message: str | None) -> None:
    given = torch.tensor(offsets, dtype=torch.int32)
    if message is None:
        check_offsets("cu_seqlens_q", given, 7, "queries")
        return
    with pytest.raises(InputMismatchError, match=message):
        check_offsets("cu_seqlens_q", given, 7, "queries")


@pytest.mark.slow
def test_interpreted_call() -> None:
    assert interpret(call_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_call() -> None:
    assert call_failure("cuda") is None


def test_a_cache_that_queries_cannot_meet_is_refused_before_any_call() -> None:
    with pytest.raises(InvalidShapeError, match="kv_dtype='int8' is not supported by paged_prefill with dtype='float3"):
        KERNEL.bind(TINY, PagedShape(**SIZES, seq_q=4, dtype="float32", kv_dtype="int8"))


QUANTIZED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no scale": ("int8", {"v_scale": torch.ones(9, 8, 2)}, r"k_scale is None; expected a float32 tensor of \(9, 8,"),
    "one for all of int8": (
        "int8",
        {"k_scale": torch.ones(()), "v_scale": torch.ones(9, 8, 2)},
        r"k_scale is \(\) float32; expected a float32 tensor of \(9, 8, 2\) for a cache of int8",
    ),
    "one a token of fp8": (
        "float8_e4m3fn",
        {"k_scale": torch.ones(2), "v_scale": torch.ones(9, 8, 2)},
        r"v_scale is \(9, 8, 2\) float32; expected a float32 tensor of \(\) or \(2,\) for a cache of float8_e4m3fn",
    ),
    "scale of 16 bits": (
        "float8_e5m2",
        {"k_scale": torch.ones(2), "v_scale": torch.ones(2, dtype=HALF)},
        r"v_scale is \(2,\) float16; expected a float32 tensor",
    ),
}


@pytest.mark.parametrize(("kv_dtype", "scales", "message"), QUANTIZED.values(), ids=QUANTIZED)
def test_scales_that_do_not_fit_are_refused(kv_dtype: str, scales: dict[str, Any], message: str) -> None:
    kind = getattr(torch, kv_dtype)
    caches = {name: tensors()[name].to(kind) for name in ("k_cache", "v_cache")}
    call = KERNEL.bind(TINY, PagedShape(**SIZES, seq_q=4, page_size=8, dtype="float16", kv_dtype=kv_dtype))
    with pytest.raises(InputMismatchError, match=message):
        call(**tensors(**caches), **scales)
