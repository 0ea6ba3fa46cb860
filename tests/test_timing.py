"""Medians, their intervals, and when a race is decided: statistics alone, no clock."""

import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import timing
from autotune.timing import MIN_ROUGH_US, ClockStopwatch, Stopwatch, _is_decided, race, screen, summarize
from autotune.trial import Policy, Timing
from tests.executor.fake_cuda import FakeCuda

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
        ([], True),
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


# Over a fake CUDA, whose clock the launches move


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake, version=SimpleNamespace(hip=None)))
    return fake


def stopwatch(cuda: FakeCuda, *microseconds: float, policy: Policy | None = None) -> Stopwatch:
    """Over launches that take so long."""
    launches = [lambda duration=duration: cuda.launch(duration) for duration in microseconds]
    return Stopwatch(launches, policy or Policy())


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_a_sample_is_the_mean_of_launches_that_together_take_long_enough(
    cuda: FakeCuda, mode: Literal["graph", "eager"]
) -> None:
    with stopwatch(cuda, 10.0, 20.0, policy=Policy(mode=mode)) as watch:
        assert watch.warm_up() == pytest.approx(15.0)
        before = cuda.now
        assert watch.sample() == pytest.approx(15.0)
        assert cuda.now - before >= timing.MIN_REPLAY_US
    assert cuda.graphs == (mode == "graph")


def test_a_slow_first_pass_shortens_no_sample(cuda: FakeCuda) -> None:
    """Issued from Python, and with kernels to load, a launch takes far longer than in a graph."""
    durations = iter([300.0] * 3)

    with Stopwatch([lambda: cuda.launch(next(durations, 10.0))], Policy()) as watch:
        assert watch.rough_us > 100.0
        assert watch.warm_up() == pytest.approx(10.0)
        before = cuda.now
        watch.sample()
        assert cuda.now - before >= timing.MIN_REPLAY_US


@pytest.mark.parametrize(("microseconds", "replays"), [(20.0, 2), (4000.0, 2), (6000.0, 1)])
def test_a_short_sample_is_taken_behind_a_replay_of_its_own(cuda: FakeCuda, microseconds: float, replays: int) -> None:
    """Traces of another replay, here a slow first launch after it, are in none."""
    with stopwatch(cuda, microseconds) as watch:
        watch.warm_up()
        before = cuda.now
        watch.sample()
        assert cuda.now - before == pytest.approx(replays * max(microseconds, timing.MIN_REPLAY_US))


@pytest.mark.parametrize(
    ("microseconds", "limit", "samples", "stopped", "graphs"),
    [
        (2000.0, math.inf, 7, False, 1),  # a sweep measures everything
        (2000.0, 2200.0, 7, False, 1),
        (2000.0, 1800.0, 3, True, 1),
        (2000.0, 1001.0, 3, True, 1),
        (2000.0, 999.0, 1, True, 0),  # twice as far behind: the first pass was proof enough
        (0.9 * MIN_ROUGH_US, 10.0, 3, True, 1),  # a short pass may have been spent in Python
    ],
)
def test_what_is_far_behind_costs_little(
    cuda: FakeCuda, microseconds: float, limit: float, samples: int, stopped: bool, graphs: int
) -> None:
    with stopwatch(cuda, microseconds) as watch:
        taken, was_stopped = screen(watch, give_up_us=limit)
    assert taken.median_us == pytest.approx(microseconds)
    assert (taken.samples, was_stopped) == (samples, stopped)
    assert cuda.graphs == graphs


@pytest.mark.parametrize("launches", [1, 2, 8])
def test_what_stood_still_once_in_the_first_pass_is_not_given_up(cuda: FakeCuda, launches: int) -> None:
    """As Python does where compilers use up a container's share of the cores; loading takes two launches."""
    durations = iter([10.0] * min(launches, 2) + [50_000.0])

    with Stopwatch([lambda: cuda.launch(next(durations, 10.0))] * launches, Policy()) as watch:
        taken, was_stopped = screen(watch, give_up_us=20.0)
    assert taken.median_us == pytest.approx(10.0)
    assert not was_stopped


@dataclass
class ScriptedStopwatch:
    """Gives these samples, the first of them at the end of its warm-up."""

    samples: list[float]
    rough_us: float = 1.0

    def warm_up(self) -> float:
        return self.sample()

    def sample(self) -> float:
        return self.samples.pop(0)


@pytest.mark.parametrize(
    ("samples", "median", "taken", "stopped"),
    [
        ([200.0, 100.0, 101.0, *[102.0] * 7], 102.0, 7, False),  # only the first was slow
        ([200.0, 160.0, 101.0], 160.0, 3, True),
        ([151.0, 149.0, 9999.0], 151.0, 3, True),
        ([149.0, *[200.0] * 7], 200.0, 7, False),
    ],
)
def test_a_single_slow_sample_stops_no_screening(
    samples: list[float], median: float, taken: int, stopped: bool
) -> None:
    stopwatch = ScriptedStopwatch(samples)
    timing, was_stopped = screen(stopwatch, give_up_us=150.0)  # type: ignore[arg-type]
    assert (timing.median_us, timing.samples, was_stopped) == (median, taken, stopped)
    assert stopwatch.samples == []


def test_a_race_says_whose_turn_it_is(cuda: FakeCuda) -> None:
    turns: list[int] = []
    watches = [stopwatch(cuda, microseconds) for microseconds in (500.0, 700.0)]
    ran: list[int] = []
    for index, watch in enumerate(watches):
        watch._launches = [partial(_note, ran, turns, index, launch) for launch in watch._launches]
    taken = race(watches, contenders=2, seconds=0.0, min_rounds=3, on_turn=turns.append)
    assert [each.median_us for each in taken] == [500.0, 700.0]
    assert turns[:2] == [0, 1]
    assert turns[2:] == [1, 0, 0, 1, 1, 0]  # rotated
    assert ran == [0, 1]  # captured at one's own turn


def _note(ran: list[int], turns: list[int], index: int, launch: Callable[[], object]) -> None:
    assert turns[-1] == index
    ran.append(index)
    launch()


def test_a_clock_repeats_a_short_call_until_it_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += 40e-6

    stopwatch = ClockStopwatch(call)
    before = now[0]
    assert stopwatch.sample() == pytest.approx(40.0)
    assert now[0] - before == pytest.approx(10 * 40e-6)  # 400 us
    assert stopwatch.warm_up() == pytest.approx(40.0)

    def call_often() -> None:
        for _ in range(50):
            call()

    slow = ClockStopwatch(call_often)
    before = now[0]
    assert slow.sample() == pytest.approx(2000.0)
    assert now[0] - before == pytest.approx(2000e-6)
