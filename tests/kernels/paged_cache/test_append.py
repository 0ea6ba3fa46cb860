"""Appending to a paged cache: every byte as torch stores it, and nothing else written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import append_kv
from autotune.errors import InputMismatchError, InvalidShapeError, NotDifferentiableError
from autotune.kernels.paged_cache.call import check_slots
from tests.contract.compiling import compile_sample
from tests.contract.interpreting import interpret
from tests.kernels.paged_cache.numerics import (
    Case,
    attention_failure,
    case_failure,
    distant_failure,
    every_half_failure,
    graph_failure,
    one_element_failure,
    outside_failure,
    prefill_failure,
)

QUANTIZED = ["int8", "float8_e4m3fn", "float8_e5m2"]
FLOATS = QUANTIZED[1:]


def cases() -> list[Case]:
    """Each type of token in each type of cache; odd widths and heads, both layouts, strides, pages of one slot."""
    found = []
    for dtype in ("float16", "float32"):
        for kv_dtype in (None, *QUANTIZED):
            plain = Case(dtype=dtype, kv_dtype=kv_dtype)
            odd = replace(plain, head_dim=72, head_dim_v=40, kv_heads=3, layout="HND", slots="int32", strided=True)
            found += [plain, odd, replace(plain, kv_heads=17, head_dim=8, head_dim_v=128, page_size=7)]
            if kv_dtype in FLOATS:
                found += [replace(plain, scale="one"), replace(odd, scale="heads", layout="NHD")]
    return [*found, Case(kv_dtype="int8", head_dim=512, head_dim_v=256, strided=True, page_size=3)]


def gpu_cases() -> list[Case]:
    return [*cases(), *(replace(case, dtype="bfloat16") for case in cases() if case.dtype == "float16")]


QUICK = 3  # one case in so many is in the quick suite


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if number % QUICK == 0 else [pytest.mark.slow])
        for number, case in enumerate(cases())
    ],
    ids=str,
)
def test_interpreted_case(case: Case) -> None:
    assert interpret(case_failure, case, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("case", gpu_cases(), ids=str)
def test_gpu_case(case: Case) -> None:
    assert case_failure(case, "cuda") is None


@pytest.mark.parametrize("kv_dtype", FLOATS)
@pytest.mark.slow
def test_interpreted_rounding_of_every_half(kv_dtype: str) -> None:
    assert interpret(every_half_failure, kv_dtype, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", FLOATS)
def test_gpu_rounding_of_every_half(kv_dtype: str) -> None:
    assert every_half_failure(kv_dtype, "cuda") is None


def test_interpreted_offsets_beyond_32_bits() -> None:
    try:
        torch.empty(4 * 2**30 + 64, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("the machine gives out no address space of this size")
    assert interpret(distant_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_offsets_beyond_32_bits() -> None:
    assert distant_failure("cuda") is None


def test_interpreted_slots_outside_the_cache_are_skipped() -> None:
    assert interpret(outside_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_slots_outside_the_cache_are_skipped() -> None:
    assert outside_failure("cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", QUANTIZED)
def test_gpu_graph_follows_tokens_and_slots(kv_dtype: str) -> None:
    assert graph_failure(kv_dtype) is None


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", QUANTIZED)
def test_gpu_attention_over_what_was_appended(kv_dtype: str) -> None:
    assert attention_failure(kv_dtype, "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", [None, *QUANTIZED])
def test_gpu_prefill_over_what_was_appended(kv_dtype: str | None) -> None:
    assert prefill_failure("cuda", kv_dtype=kv_dtype) is None


@pytest.mark.parametrize("kv_dtype", ["int8", *(pytest.param(each, marks=pytest.mark.slow) for each in FLOATS)])
def test_interpreted_attention_over_what_was_appended(kv_dtype: str) -> None:
    """The public functions pick for tensors on the CPU where there is no GPU."""
    assert interpret(attention_failure, kv_dtype, "cpu", torch.float16) is None


@pytest.mark.parametrize("kv_dtype", [None, "int8", *(pytest.param(each, marks=pytest.mark.slow) for each in FLOATS)])
def test_interpreted_prefill_over_what_was_appended(kv_dtype: str | None) -> None:
    assert interpret(prefill_failure, "cpu", torch.float16, kv_dtype) is None


@pytest.mark.parametrize(
    "arch", ["sm_90", *(pytest.param(arch, marks=pytest.mark.slow) for arch in ("sm_80", "gfx942"))]
)
@pytest.mark.slow
def test_all_types_compile_and_no_product_is_fused_with_a_sum(arch: str, tmp_path: Path) -> None:
    fused = compile_sample("tests.kernels.paged_cache.compile_sample", arch, tmp_path)
    assert sorted(fused) == sorted(["bfloat16", *QUANTIZED])
    if arch.startswith("sm"):  # AMD's divisions are made of fused products
        assert fused == dict.fromkeys(fused, 0)


def test_interpreted_axes_of_one_element_may_have_any_stride() -> None:
    assert interpret(one_element_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_axes_of_one_element_may_have_any_stride() -> None:
    assert one_element_failure("cuda") is None


def tensors(kv_dtype: torch.dtype = torch.float16, **replaced: Any) -> dict[str, Any]:
    given = {
        "k": torch.zeros(3, 2, 16, dtype=torch.float16),
        "v": torch.zeros(3, 2, 24, dtype=torch.float16),
        "k_cache": torch.zeros(5, 8, 2, 16, dtype=kv_dtype),
        "v_cache": torch.zeros(5, 8, 2, 24, dtype=kv_dtype),
        "slots": torch.zeros(3, dtype=torch.int64),
    }
    return given | replaced


ONE = torch.ones(())
E4M3 = torch.float8_e4m3fn
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rank": (tensors(k=torch.zeros(3, 16)), r"k is \(3, 16\); expected 3 dimensions"),
    "list": (tensors(slots=[0, 1, 2]), "slots is a list; expected a tensor"),
    "tokens": (
        tensors(v=torch.zeros(2, 2, 24).half()),
        r"v is \(2, 2, 24\) float16; expected \(3, 2, 24\) float16, "
        r"since k is \(3, 2, 16\) float16 and k_cache is \(5, 8, 2, 16\) float16 \(NHD\)",
    ),
    "fewer keys": (tensors(k=torch.zeros(2, 2, 16).half()), r"k is \(2, 2, 16\) float16; expected \(3, 2, 16\) float"),
    "fewer heads": (tensors(k=torch.zeros(3, 1, 16).half()), r"k is \(3, 1, 16\) .*; expected \(3, 2, 16\) float16, s"),
    "type": (tensors(k=torch.zeros(3, 2, 16).double()), "k is .* float64; expected .* float16, since k_cache is .*16"),
    "types": (tensors(v=torch.zeros(3, 2, 24)), r"v is .* float32; expected \(3, 2, 24\) float16"),
    "cache type": (
        tensors(torch.float64),
        "k_cache is .* float64; expected .* float16 or bfloat16 or float32 or int8 or float8_e4m3fn or float8_e5m2",
    ),
    "keys of another type": (
        tensors(torch.float32, v=torch.zeros(3, 2, 24)),
        r"k is \(3, 2, 16\) float16; expected \(3, 2, 16\) float32, since k_cache is \(5, 8, 2, 16\) float32 \(NHD\)",
    ),
    "quantized type": (
        tensors(torch.int8, k=torch.zeros(3, 2, 16).int()),
        r"k is .* int32; expected \(3, 2, 16\) float16 or bfloat16 or float32, since k_cache is .* int8",
    ),
    "cache types": (tensors(v_cache=torch.zeros(5, 8, 2, 24).char()), "v_cache is .* int8; expected .* float16"),
    "layout": (
        {**tensors(), "layout": "hnd"},
        r"k is \(3, 2, 16\) .*; expected \(3, 8, 16\) float16, since k_cache is \(5, 8, 2, 16\) float16 \(HND\)",
    ),
    "layout of one": (
        tensors(v_cache=torch.zeros(5, 2, 8, 24).half()),
        r"v_cache is \(5, 2, 8, 24\) float16; expected \(5, 8, 2, 24\) float16",
    ),
    "pages": (tensors(v_cache=torch.zeros(4, 8, 2, 24).half()), r"v_cache is \(4, .* expected \(5, 8, 2, 24\)"),
    "stride": (tensors(k=torch.zeros(3, 16, 2).half().mT), "k has the strides .*; expected 1 in the last dimension"),
    "slot type": (tensors(slots=torch.zeros(3)), r"slots is \(3,\) float32; expected \(3,\) int64 or int32"),
    "slot count": (tensors(slots=torch.zeros(4).long()), r"slots is \(4,\) int64; expected \(3,\) int64 or int32"),
    "number": (tensors(E4M3, k_scale=0.5), r"k_scale is 0.5; expected a float32 tensor of \(\) or \(2,\)"),
    "needless scale": (tensors(v_scale=ONE), r"v_scale is \(\) float32; expected None for a cache of float16"),
    "no scale": (tensors(torch.int8), r"k_scale is None; expected a float32 tensor of \(5, 8, 2\) for a cache of int8"),
    "scale": (
        tensors(E4M3, v_scale=torch.ones(3)),
        r"v_scale is \(3,\) float32; expected a float32 tensor of \(\) or \(2,\) for a cache of float8_e4m3fn",
    ),
    "scale type": (tensors(E4M3, k_scale=ONE.half()), r"k_scale is \(\) float16; expected a float32 tensor of"),
    "device": (tensors(slots=torch.zeros(3, device="meta").long()), "k_cache is on cpu, slots on meta; expected one"),
    "slot": (
        tensors(slots=torch.tensor([39, -1, 40])) | {"check": True},
        r"slots\[2\]=40 is not in the cache; expected 0 to 39 for 5 pages of 8, or a negative number",
    ),
    "slot twice": (
        tensors(slots=torch.tensor([7, -1, 7])) | {"check": True},
        r"slots\[2\]=7 is that of slots\[0\] too; expected each slot once, or a negative number",
    ),
    "no GPU": (tensors(), "the tensors are on the CPU; expected a GPU"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=[name.replace(" ", "-") for name in BAD])
def test_what_does_not_fit_is_refused(given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "check" in given:  # a slot is read where the tensors are
        monkeypatch.setattr("triton.knobs.runtime.interpret", True)
    with pytest.raises(InputMismatchError, match=message):
        append_kv(**given)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("slots", [[], [-1, 0, -1, 39, 7, -8], [3]], ids=str)
def test_slots_that_are_given_once_are_accepted(slots: list[int], dtype: torch.dtype) -> None:
    check_slots(torch.tensor(slots, dtype=dtype), pages=5, page_size=8)


def test_gradients_are_refused() -> None:
    with pytest.raises(NotDifferentiableError, match="v requires gradients, and there is no backward kernel"):
        append_kv(**tensors(v=torch.zeros(3, 2, 24, dtype=torch.float16, requires_grad=True)))


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(InvalidShapeError, match="layout='NDH' is not allowed; expected 'NHD' or 'HND'"):
        append_kv(**tensors(), layout="NDH")  # type: ignore[arg-type]
