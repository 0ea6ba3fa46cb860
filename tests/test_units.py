"""Measured numbers as text."""

import pytest

from autotune import units
from autotune.trial import Timing


@pytest.mark.parametrize(
    ("timing", "text"),
    [
        (Timing(6.247, 6.2, 6.3, 15), "6.247 us (6.200-6.300)"),
        (Timing(123.456, 120.0, 130.04, 15), "123.5 us (120.0-130.0)"),
        (Timing(999.9, 999.0, 1001.0, 15), "999.9 us (999.0-1001.0)"),
        (Timing(1000.0, 990.0, 1234.5678, 15), "1.000 ms (0.990-1.235)"),
        (Timing(2.5e6, 2.4e6, 2.6e6, 15), "2.500 s (2.400-2.600)"),
    ],
)
def test_a_timing_is_in_the_unit_of_its_median(timing: Timing, text: str) -> None:
    assert units.timing_text(timing) == text
    assert text.startswith(units.time_text(timing.median_us))


def test_rates_have_three_digits_and_no_exponent() -> None:
    rates = (4077.8, 254.4, 24.68, 9.996, 8.2, 0.03123, 0.00002, 0.0)
    assert [units.three_digits(rate) for rate in rates] == [
        *("4078", "254", "24.7", "10.0", "8.20", "0.0312", "0.0000200", "0")
    ]


def test_a_small_rate_has_the_smaller_unit() -> None:
    assert [units.tflops_text(rate) for rate in (254.2, 1.0, 0.047)] == ["254 TFLOP/s", "1.00 TFLOP/s", "47.0 GFLOP/s"]


@pytest.mark.parametrize(
    ("time", "text"), [(0.0, "0 us"), (6.2474, "6.25 us"), (84.24, "84.2 us"), (127936.5, "128 ms")]
)
def test_a_short_time_has_three_digits(time: float, text: str) -> None:
    assert units.short_time_text(time) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.34, "2.3 s"), (61.0, "61 s"), (100.0, "2 min"), (600.0, "10 min"), (7200.0, "2.0 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert units.duration_text(seconds) == text


def test_counts_ratios_and_shares() -> None:
    assert [units.count_text(count, "trial") for count in (0, 1, 2500)] == ["0 trials", "1 trial", "2,500 trials"]
    assert units.count_text(2, "batch") == "2 batches"
    assert (units.ratio_text(1.236), units.mib_text(3 * 2**19)) == ("1.24x", "1.5 MiB")
    assert [units.percent_text(share) for share in (0.0, 0.0123, 0.0996, 0.5)] == ["0 %", "1.2 %", "10 %", "50 %"]


@pytest.mark.parametrize(("count", "text"), [(0, ""), (1, "1"), (3, "1; 2; 3"), (4, "1; 2; 3 and 1 more")])
def test_a_long_list_is_cut_and_its_rest_counted(count: int, text: str) -> None:
    assert units.few_text([str(each) for each in range(1, count + 1)], "; ") == text
