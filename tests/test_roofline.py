"""Rates by hand, and times that no hardware reaches."""

from dataclasses import replace

import pytest

from autotune.device import NVIDIA_H200
from autotune.operation import Cost
from autotune.roofline import PEAKS, rates, why_implausible

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
    assert why_implausible(cost, microseconds, NVIDIA_H200) == reason


def test_an_unknown_device_refuses_only_no_time() -> None:
    cost = Cost(flops=10**18, bytes=10**18)
    assert why_implausible(cost, 1e-9, UNKNOWN) is None
    assert why_implausible(cost, 0.0, UNKNOWN) == "0.0 us is no time"


def test_the_h200_of_the_shipped_tables_has_a_peak() -> None:
    assert (PEAKS[NVIDIA_H200.name].tflops, PEAKS[NVIDIA_H200.name].gbps) == (989.5, 4800)
