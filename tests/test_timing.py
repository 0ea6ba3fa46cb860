"""Medians, their intervals, and when a race is decided: statistics alone, no clock."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.timing import _is_decided, summarize
from autotune.trial import Timing

microseconds = st.floats(1.0, 1e6)


@given(st.lists(microseconds, min_size=1, max_size=30))
def test_the_median_is_the_median_and_lies_in_its_interval(samples: list[float]) -> None:
    timing = summarize(samples)
    assert timing.median_us == pytest.approx(statistics.median(samples))
    assert min(samples) <= timing.low_us <= timing.median_us <= timing.high_us <= max(samples)
    assert timing.samples == len(samples)
    assert summarize(samples) == timing  # the bootstrap has a seed


def test_equal_samples_have_no_width() -> None:
    assert summarize([7.0] * 5) == Timing(7.0, 7.0, 7.0, 5)


def test_the_interval_is_that_of_the_bootstrap() -> None:
    """With three samples each resample's median is known: 1 and 3 have 7/27 each, so both ends are in the interval."""
    timing = summarize([1.0, 2.0, 3.0])
    assert (timing.low_us, timing.high_us) == (1.0, 3.0)


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    rng = random.Random(0)
    intervals = [summarize([rng.gauss(100.0, 5.0) for _ in range(25)], seed=seed) for seed in range(200)]
    covered = sum(timing.low_us <= 100.0 <= timing.high_us for timing in intervals)
    assert 180 <= covered <= 199  # 95 % of 200, give or take what a percentile bootstrap of 25 samples misses


def test_more_samples_narrow_the_interval() -> None:
    rng = random.Random(0)
    samples = [rng.gauss(100.0, 5.0) for _ in range(400)]
    few, many = summarize(samples[:10]), summarize(samples)
    assert many.high_us - many.low_us < (few.high_us - few.low_us) / 2


def around(center: float, *, spread: float) -> list[float]:
    return [center - spread, center, center + spread] * 7


@pytest.mark.parametrize(
    ("entries", "decided"),
    [
        ([around(100, spread=5)], True),
        ([around(100, spread=1), around(110, spread=1)], True),  # the second lost
        ([around(110, spread=1), around(100, spread=1)], True),  # in any order
        ([around(100, spread=5), around(103, spread=5)], False),  # they overlap, widely
        ([around(100, spread=0.1), around(100.2, spread=0.1)], True),  # a tie, known closely
        ([around(100, spread=0.1), around(100.2, spread=0.1), around(102, spread=5)], False),
        ([around(100, spread=0.1), around(120, spread=5), around(120, spread=5)], True),
    ],
)
def test_a_race_is_decided_when_every_other_lost_or_ties(entries: list[list[float]], decided: bool) -> None:
    assert _is_decided(entries) is decided
