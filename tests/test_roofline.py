"""Rates by hand, and times that no hardware reaches."""

from dataclasses import replace

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import UsageError
from autotune.operation import Cost
from autotune.platforms import data_sheets
from autotune.registry import get_operation
from autotune.roofline import Roof, least_us, product_dtype, rates, roof_of, why_implausible
from autotune.shape import AttentionShape, PagedShape, Shape

FLASH = get_operation("flash_attention")
UNKNOWN = replace(NVIDIA_H200, name="Some GPU")


def test_rates() -> None:
    # 2e12 operations and 3e9 bytes in 4 ms.
    tflops, gbps = rates(Cost(flops=2 * 10**12, bytes=3 * 10**9), 4000.0)
    assert tflops == pytest.approx(500.0)
    assert gbps == pytest.approx(750.0)


@pytest.mark.parametrize(
    ("cost", "microseconds", "reason"),
    [
        (Cost(flops=10**12, bytes=1), 1011.0, None),  # 989.1 TFLOP/s
        (Cost(flops=10**12, bytes=1), 1010.0, "990 TFLOP/s exceeds the 990 of NVIDIA H200"),  # 990.1 and 989.5
        (Cost(flops=10**12, bytes=1), 100.0, "10000 TFLOP/s exceeds the 990 of NVIDIA H200"),
        (Cost(flops=1, bytes=48 * 10**8), 1001.0, None),
        (Cost(flops=1, bytes=48 * 10**8), 500.0, "9600 GB/s exceeds the 4800 of NVIDIA H200"),
        (Cost(flops=1, bytes=1), 0.0, "0.0 us is no time"),
        (Cost(flops=1, bytes=1), -1.0, "-1.0 us is no time"),
    ],
)
def test_times_that_cannot_be_true(cost: Cost, microseconds: float, reason: str | None) -> None:
    assert why_implausible(cost, microseconds, NVIDIA_H200, "bfloat16") == reason


def test_float32_is_held_against_a_sixth_of_the_rate_of_bfloat16() -> None:
    """An H200 has 989.5 TFLOP/s of bfloat16, of which a product of float32 takes six: 164.9; IEEE's are 67."""
    impossible, possible = (Cost(flops=flops * 10**9, bytes=1) for flops in (166, 164))
    reason = "166 TFLOP/s exceeds the 165 of NVIDIA H200"
    assert why_implausible(impossible, 1000.0, NVIDIA_H200, "float32") == reason
    assert why_implausible(possible, 1000.0, NVIDIA_H200, "float32") is None
    assert why_implausible(impossible, 1000.0, NVIDIA_H200, "float16") is None


def test_arithmetic_refuses_nothing_in_a_dtype_of_which_no_rate_is_known() -> None:
    assert why_implausible(Cost(flops=10**15, bytes=1), 1.0, NVIDIA_H200, "int8") is None
    reason = "9600 GB/s exceeds the 4800 of NVIDIA H200"
    assert why_implausible(Cost(flops=1, bytes=48 * 10**8), 500.0, NVIDIA_H200, "int8") == reason


def test_an_unknown_device_refuses_only_no_time() -> None:
    cost = Cost(flops=10**18, bytes=10**18)
    assert why_implausible(cost, 1e-9, UNKNOWN, "bfloat16") is None
    assert why_implausible(cost, 0.0, UNKNOWN, "bfloat16") == "0.0 us is no time"


def test_the_h200_of_the_shipped_tables_has_a_roof_for_each_dtype() -> None:
    assert roof_of(NVIDIA_H200.name, "bfloat16") == roof_of(NVIDIA_H200.name, "float16") == Roof(989.5, 4800)
    assert roof_of(NVIDIA_H200.name, "float32") == Roof(989.5 / 6, 4800)
    assert roof_of(NVIDIA_H200.name, "float8_e4m3fn") == Roof(1979.0, 4800)  # 3958 with sparsity
    assert roof_of("NVIDIA A100-SXM4-80GB", "float8_e4m3fn") is None
    assert roof_of(NVIDIA_H200.name, "int8") is None
    assert roof_of(UNKNOWN.name, "bfloat16") is None


@pytest.mark.parametrize("device", data_sheets())
def test_float32_is_slower_than_16_bits_everywhere(device: str) -> None:
    tflops = data_sheets()[device].tflops
    assert tflops.keys() - {"float8_e4m3fn"} == {"float16", "bfloat16", "tf32", "float32"}
    assert tflops["tf32"] == pytest.approx(tflops["float16"] / 2, rel=1e-3)
    assert tflops["float32"] < tflops["float16"] / 5


def test_the_roof_is_the_lower_of_the_two_ceilings() -> None:
    roof = Roof(989.5, 4800)
    assert roof.ridge == pytest.approx(206.1, abs=0.1)
    assert roof.attainable(100) == pytest.approx(480)
    assert roof.attainable(1000) == 989.5
    assert roof.attainable(roof.ridge) == pytest.approx(989.5)


def test_products_are_of_the_queries_dtype_whatever_the_cache_holds() -> None:
    dense = AttentionShape(batch=1, heads=1, seq_q=64, head_dim=64, dtype="float32")
    paged = PagedShape(batch=1, heads=1, max_context=64, head_dim=64, dtype="float16", kv_dtype="int8")
    assert [product_dtype(FLASH, shape) for shape in (dense, paged, Shape())] == ["float32", "float16", ""]


@pytest.mark.parametrize(
    ("flops", "bytes_", "dtype", "expected"),
    [
        (989.5e9, 1, "bfloat16", 1000.0),
        (1, 4.8e9, "bfloat16", 1000.0),  # memory is the limit
        (989.5e9, 1, "float32", 6000.0),
        (989.5e9, 4.8e6, "int4", 1.0),  # no rate is known: by its bytes alone
    ],
)
def test_the_least_time_is_one_that_is_just_plausible(flops: float, bytes_: float, dtype: str, expected: float) -> None:
    cost = Cost(flops=int(flops), bytes=int(bytes_))
    least = least_us(cost, NVIDIA_H200, dtype)
    assert least == pytest.approx(expected)
    assert why_implausible(cost, 1.001 * least, NVIDIA_H200, dtype) is None
    assert why_implausible(cost, 0.999 * least, NVIDIA_H200, dtype) is not None


def test_of_an_unknown_device_no_least_time_is_known() -> None:
    assert least_us(Cost(flops=10**15, bytes=1), replace(NVIDIA_H200, name="NVIDIA X"), "bfloat16") == 0.0


@pytest.mark.parametrize(
    ("multiplies_in", "dtype", "expected"),
    [
        ("tf32", "float32", "tf32"),
        ("tf32", "bfloat16", "bfloat16"),  # TF32 is of float32 alone
        ("bfloat16", "float32", "bfloat16"),
        ("", "float32", "float32"),
    ],
)
def test_products_are_of_the_type_that_the_operation_declares(multiplies_in: str, dtype: str, expected: str) -> None:
    shape = AttentionShape(batch=1, heads=1, seq_q=64, head_dim=64, dtype=dtype)
    assert product_dtype(replace(FLASH, multiplies_in=multiplies_in), shape) == expected


def test_a_shape_without_a_dtype_has_the_products_that_the_operation_declares() -> None:
    assert product_dtype(replace(FLASH, multiplies_in="tf32"), Shape()) == "tf32"
    assert product_dtype(replace(FLASH, multiplies_in="float16"), Shape()) == "float16"


def test_an_unknown_type_of_products_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"multiplies_in='tf16' of 'flash_attention' is unknown; allowed: '', 'tf32', "
    ):
        replace(FLASH, multiplies_in="tf16")


def test_products_in_tf32_are_half_as_fast_as_in_16_bits() -> None:
    cost = Cost(flops=350 * 10**9, bytes=1)  # 350 TFLOP/s in a millisecond
    assert why_implausible(cost, 1000.0, NVIDIA_H200, "tf32") is None
    assert why_implausible(cost, 1000.0, NVIDIA_H200, "float32") == "350 TFLOP/s exceeds the 165 of NVIDIA H200"
    assert why_implausible(cost, 700.0, NVIDIA_H200, "tf32") == "500 TFLOP/s exceeds the 495 of NVIDIA H200"


def test_bytes_that_a_cache_holds_need_not_cross_the_memory() -> None:
    cost = Cost(flops=1, bytes=40 * 10**6)
    reason = "8000 GB/s exceeds the 4800 of NVIDIA H200"
    assert why_implausible(cost, 5.0, NVIDIA_H200, "bfloat16") == reason
    assert why_implausible(cost, 5.0, NVIDIA_H200, "bfloat16", cached_bytes=50 * 2**20) is None
    assert why_implausible(cost, 5.0, NVIDIA_H200, "bfloat16", cached_bytes=10 * 10**6) == reason.replace(
        "8000", "6000"
    )
