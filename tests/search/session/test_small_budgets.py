"""A small budget: what is served is compiled and measured first, and no search ends with less than that."""

import math
from typing import Any

import pytest

from autotune.errors import SearchError
from autotune.search import Ending, opening
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Candidate, PriorPick, Status
from tests.search.session.searching import clock, run, winner_of
from tests.search.synthetic import LARGE, FakeExecutor, default, median_us, valid

BEST = min(valid(LARGE), key=median_us)  # what the portfolio has for the shape
SERVED = PriorPick(Candidate("valley", BEST), "nearest")  # or a row of one near by
OTHERS = [config for config in valid(LARGE) if median_us(config) > 1.2 * median_us(BEST)]


class Disturbed(FakeExecutor):
    """Screens one config at so many times its time, as beside another process; races are not disturbed."""

    def __init__(self, config: Config, factor: float, **options: float) -> None:
        self._factors = {config: factor}
        super().__init__(time_us=lambda each: self._factors.get(each, 1.0) * median_us(each), **options)  # type: ignore[arg-type]

    def race(self, *arguments: object, **named: object):  # type: ignore[no-untyped-def]
        self._factors = {}
        return super().race(*arguments, **named)  # type: ignore[arg-type]


def test_what_is_served_is_compiled_while_the_space_is_listed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, submitted = FakeExecutor(capacity=4), []
    open_study = opening._open_study

    def note(*arguments: object) -> object:
        submitted.append(list(executor.submitted))
        return open_study(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "_open_study", note)
    result = run(executor, store, trials=6, defaults={"valley": OTHERS[0]}, served=SERVED)
    assert submitted == [[BEST, OTHERS[0]]]
    assert executor.submitted[:3] == [BEST, OTHERS[0], default(LARGE)]
    assert len(set(executor.submitted)) == 6
    assert (result.measured, len(executor.submitted)) == (6, 6)


def test_what_is_known_is_not_submitted_again(store: Store) -> None:
    run(FakeExecutor(), store, trials=1, defaults={"valley": BEST})
    executor = FakeExecutor(capacity=4)
    run(executor, store, trials=3, defaults={"valley": OTHERS[0]}, served=SERVED)
    assert (len(executor.submitted), BEST in executor.submitted) == (2, False)
    assert executor.submitted[0] == OTHERS[0]


@pytest.mark.parametrize("known", [{"defaults": {"valley": BEST}}, {"served": SERVED}], ids=["default", "served"])
@pytest.mark.parametrize("seconds", [2.5, 4.0, 15.0])
@pytest.mark.parametrize("order", range(5))
def test_no_search_ends_with_less_than_what_is_served(
    store: Store, monkeypatch: pytest.MonkeyPatch, seconds: float, order: int, known: dict[str, Any]
) -> None:
    """However little was measured, and in whatever order compiles ended: the verdict on it may be missing."""
    executor = clock(monkeypatch, FakeExecutor(capacity=8, order=order, trial_seconds=1.0))
    first = {"valley": OTHERS[:12]}
    result = run(executor, store, trials=None, seconds=seconds, neighbours=first, **known)
    assert BEST in executor.races[-1]
    assert median_us(winner_of(result)) <= 1.01 * median_us(BEST)


@pytest.mark.parametrize("factor", [0.5, 1.3, 3.0])
def test_a_disturbed_screening_of_what_is_served_does_not_cost_it_the_race(store: Store, factor: float) -> None:
    result = run(Disturbed(BEST, factor), store, trials=12, defaults={"valley": BEST})
    assert median_us(winner_of(result)) <= 1.01 * median_us(BEST)


@pytest.mark.parametrize("factor", [0.5, 0.8])
def test_a_config_that_looked_faster_than_it_is_shuts_no_other_out(store: Store, factor: float) -> None:
    """Its time is the best of the screening by far; in the race it is 20 % behind, as the default is."""
    slow, default = OTHERS[:2]
    executor = Disturbed(slow, factor * median_us(BEST) / median_us(slow))
    result = run(executor, store, trials=4, defaults={"valley": default}, neighbours={"valley": [slow, BEST]})
    assert slow in executor.races[-1]
    assert winner_of(result) == BEST


def test_a_search_says_when_it_reached_each_step(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = clock(monkeypatch, FakeExecutor(trial_seconds=1.0))
    executor.elapsed = 3.0
    result = run(executor, store, trials=None, seconds=15.0, started=0.0)
    assert result.stages == {"listed": 3.0, "first_measured": 4.0, "screened": 10.5}
    assert (result.seconds, result.ending) == (15.0, Ending.SECONDS)


def test_a_budget_that_start_up_has_taken_is_refused_before_anything_is_submitted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = clock(monkeypatch, FakeExecutor(trial_seconds=1.0))
    executor.elapsed = 5.0
    with pytest.raises(SearchError, match=r"the budget of 4 s cannot hold a race: 5\.0 s went to starting up"):
        run(executor, store, trials=None, seconds=4.0, started=0.0)
    assert executor.submitted == []


@pytest.mark.parametrize("known", [{"defaults": {"valley": BEST}}, {"served": SERVED}], ids=["default", "served"])
def test_a_served_config_that_fails_is_not_raced(store: Store, known: dict[str, Any]) -> None:
    executor = FakeExecutor(failures={BEST: Status.WRONG_RESULT})
    result = run(executor, store, trials=6, **known)
    assert BEST not in executor.races[-1]
    assert math.isfinite(median_us(winner_of(result)))
