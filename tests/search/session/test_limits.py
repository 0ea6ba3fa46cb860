"""When a search ends: after its trials, its seconds, or when it has converged."""

import itertools

import pytest

from autotune.errors import SearchError
from autotune.search import Ending
from autotune.table import Store
from autotune.trial import Stage, Status
from tests.search.session.searching import FAILURES, SPACE, clock, rows, run
from tests.search.synthetic import LARGE, SMALL, FakeExecutor, valid

UNREACHED = (Status.INVALID, Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.OUT_OF_RESOURCES)


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> FakeExecutor:
    """An executor whose trials take a second each, by the clock that the search reads."""
    return clock(monkeypatch, FakeExecutor(trial_seconds=1.0))


@pytest.mark.parametrize("capacity", [1, 4])
def test_only_configs_that_reached_the_device_count(store: Store, capacity: int) -> None:
    reasons = itertools.cycle(UNREACHED)
    failures = {config: next(reasons) for config in valid(LARGE)[::2]}
    executor = FakeExecutor(capacity=capacity, failures=failures)
    result = run(executor, store, trials=15)
    assert result.statuses[Status.OK] == 15
    assert result.measured == len(executor.submitted) > 15


def test_configs_that_failed_on_the_device_count(store: Store) -> None:
    reasons = itertools.cycle(status for status in FAILURES if status not in UNREACHED)
    executor = FakeExecutor(failures={config: next(reasons) for config in valid(LARGE)[::2]})
    result = run(executor, store, trials=15, sampler="random")
    assert result.measured == 15
    assert len(result.statuses) > 3


@pytest.mark.parametrize(
    ("seconds", "started", "trials", "race"),
    [
        (20.0, 0.0, 14, 6.0),  # 30 % for the race
        (20.0, -5.0, 9, 6.0),  # the budget began to run before the search did
        (45.0, 0.0, 33, 12.0),  # a race takes no more than it needs
        (4.0, 0.0, 2, 2.0),  # nor less
    ],
)
def test_a_budget_in_seconds_leaves_time_for_the_race(
    store: Store, clocked: FakeExecutor, seconds: float, started: float, trials: int, race: float
) -> None:
    result = run(clocked, store, trials=None, seconds=seconds, started=started)
    assert (result.measured, clocked.race_seconds) == (trials, [race])
    assert result.seconds == clocked.elapsed - started == max(seconds, race - started)
    assert result.winner is not None


@pytest.mark.parametrize(
    ("kernel_us", "trials"),
    [
        (6_000.0, 28),  # 7 entrants 75 times: 3.2 s, less than the share of 12 s
        (30_000.0, 24),  # 15.8 s
        (90_000.0, 20),  # half of the budget
    ],
)
def test_long_kernels_leave_more_time_for_the_race(
    store: Store, monkeypatch: pytest.MonkeyPatch, kernel_us: float, trials: int
) -> None:
    executor = clock(monkeypatch, FakeExecutor(trial_seconds=1.0, time_us=lambda config: kernel_us))
    result = run(executor, store, trials=None, seconds=40.0)
    assert (result.measured, len(executor.raced[0])) == (trials, 6)


def test_slow_kernels_do_not_end_a_search_before_faster_ones_were_tried(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeExecutor(trial_seconds=1.0)
    executor._time_us = lambda config: 300_000.0 if len(executor.collected) < 11 else 30.0
    clock(monkeypatch, executor)
    assert run(executor, store, trials=None, seconds=20.0).measured == 14  # as of fast kernels alone


def test_a_search_that_is_continued_gets_on_though_starting_took_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    for _ in range(3):
        executor = clock(monkeypatch, FakeExecutor(trial_seconds=1.0, time_us=lambda config: 90_000.0))
        measured.append(run(executor, store, trials=None, seconds=31.0, started=-16.0).measured)
    assert measured == [5, 5, 5]


def test_without_limits_the_whole_space_is_tried(store: Store, clocked: FakeExecutor) -> None:
    assert run(clocked, store, SMALL, trials=None).measured == len(SPACE)
    assert clocked.race_seconds == [12.0]


@pytest.mark.parametrize("started", [0.0, -9.0])
def test_a_budget_too_short_to_measure_stores_no_winner(store: Store, clocked: FakeExecutor, started: float) -> None:
    with pytest.raises(SearchError, match="cannot hold a search: 2 s are kept for its race; give it at least"):
        run(clocked, store, trials=None, seconds=1.0, started=started)
    assert clocked.race_seconds == []
    assert rows(store, Stage.RACE) == []


@pytest.mark.slow
def test_a_search_that_converged_stops(store: Store) -> None:
    result = run(FakeExecutor(), store, trials=None, converge=True)
    assert result.ending is Ending.CONVERGED
    assert len(valid(LARGE)) / 4 <= result.measured < len(valid(LARGE)) / 2
    assert result.winner is not None
