"""A search of several implementations: they take turns, one race decides between all, and each is counted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InvalidShapeError, SearchError
from autotune.executor import Race
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.search import Ending, Limits, Observer, SearchResult, opening, search
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store, winners
from autotune.trial import Candidate, Outcome, PriorPick, Stage, Status, Trial
from tests.search.session.searching import clock
from tests.search.synthetic import (
    LINE,
    PAIR,
    SHAPE,
    SYNTHETIC_PAIR,
    VALLEY,
    FakeExecutor,
    default,
    median_us,
    timing,
    valid,
)

BEST_LINE, BEST_VALLEY = (min(valid(each), key=median_us) for each in (LINE, VALLEY))


def run(
    executor: FakeExecutor, store: Store, implementations: Sequence[Implementation[Any]] = PAIR, **options: Any
) -> SearchResult:
    limits = options.pop("limits", Limits())
    return search(SYNTHETIC_PAIR, SHAPE, executor, store, limits=limits, implementations=implementations, **options)


def refusing(implementation: Implementation[Any], reason: str = "no tensor cores") -> Implementation[Any]:
    return replace(implementation, supports=lambda shape, device: reason)


class Notes(Observer):
    """Notes what is skipped and how many configs are valid."""

    def __init__(self) -> None:
        self.skipped: list[str] = []
        self.valid: Mapping[str, int] = {}

    def on_skipped(self, implementation: str, reason: str) -> None:
        self.skipped.append(f"{implementation}: {reason}")

    def on_start(
        self, operation: Operation[Any], shape: Shape, *, valid: Mapping[str, int], resumed: int, best: Trial | None
    ) -> None:
        self.valid = valid


def test_ours_are_tuned_by_default_in_turn(store: Store) -> None:
    executor = FakeExecutor()
    search(SYNTHETIC_PAIR, SHAPE, executor, store, limits=Limits())
    turns = [candidate.implementation for candidate in executor.candidates]
    both = 2 * len(valid(LINE))
    assert turns[:both] == ["valley", "line"] * len(valid(LINE))
    assert set(turns[both:]) == {"valley"}
    assert set(executor.candidates) == {Candidate(each.name, config) for each in PAIR for config in valid(each)}


@pytest.mark.slow
def test_alone_an_implementation_is_asked_for_the_same_configs_as_beside_another(tmp_path: Path) -> None:
    alone, beside = FakeExecutor(), FakeExecutor()
    run(alone, Store(tmp_path / "alone"), [VALLEY], seed=3)
    run(beside, Store(tmp_path / "beside"), seed=3)
    assert [each.config for each in beside.candidates if each.implementation == "valley"] == alone.submitted


def test_one_race_decides_between_the_finalists_of_all(store: Store) -> None:
    executor = FakeExecutor()
    result = run(executor, store)
    (raced,) = executor.raced
    assert {each.implementation for each in raced} == {"valley", "line"}
    assert [Candidate(each.name, default(each)) in raced for each in PAIR] == [True, True]
    assert result.winner is not None
    assert result.winner.candidate == Candidate("line", BEST_LINE)  # 3 % faster than the valley's
    rows = [row for row in store.trials(SYNTHETIC_PAIR.name) if row.stage is Stage.RACE]
    assert len({row.race_id for row in rows}) == 1
    assert {row.candidate for row in rows} == set(raced)
    for row in rows:  # the default is that of the row's own implementation
        (implementation,) = (each for each in PAIR if each.name == row.implementation)
        assert row.default_timing is not None
        assert row.default_timing.median_us == median_us(default(implementation))
    assert {row.implementation: row.config for row in winners(rows)} == {"line": BEST_LINE, "valley": BEST_VALLEY}


def test_rows_of_all_have_the_time_of_what_people_write_by_hand(store: Store) -> None:
    written = max(valid(VALLEY), key=median_us)
    result = run(FakeExecutor(), store, heuristics={"valley": [written]})
    assert result.winner is not None
    assert (result.winner.implementation, result.winner.heuristic_timing) == ("line", timing(median_us(written)))


@pytest.mark.slow
def test_what_is_close_to_the_best_of_all_is_raced_however_many_are_before_it(store: Store) -> None:
    """Of an implementation that is far behind only its fastest is raced, which is served where the winner declines."""
    executor = FakeExecutor(time_us=lambda config: 100.0 if "STEP" in config else 104.0)
    run(executor, store)
    assert sum(each.implementation == "valley" for each in executor.raced[0]) > 1
    slow = FakeExecutor(time_us=lambda config: 100.0 if "STEP" in config else 100.0 + median_us(config))
    run(slow, Store(store.root / "other"))
    raced = [each.config for each in slow.raced[0] if each.implementation == "valley"]
    assert set(raced) == {BEST_VALLEY, default(VALLEY)}


def test_trials_and_results_count_all_implementations(store: Store) -> None:
    executor = FakeExecutor()
    result = run(executor, store, limits=Limits(trials=9))
    assert (len(executor.submitted), result.ending) == (9, Ending.TRIALS)
    assert (result.measured, result.valid) == (9, sum(len(valid(each)) for each in PAIR))
    parts = {part.implementation: part for part in result.implementations}
    assert {name: (part.measured, part.valid) for name, part in parts.items()} == {
        "valley": (5, len(valid(VALLEY))),
        "line": (4, len(valid(LINE))),
    }
    assert all(part.statuses == {Status.OK: part.measured} for part in parts.values())
    again = run(FakeExecutor(), store, limits=Limits(trials=9))
    assert (again.measured, again.resumed, again.winner) == (0, 9, result.winner)


def test_each_study_converges_by_itself(store: Store) -> None:
    executor = FakeExecutor(time_us=lambda config: 100.0)
    result = run(executor, store, limits=Limits(converge=True))
    assert result.ending is Ending.EXHAUSTED  # fewer configs than convergence asks for
    assert len(executor.submitted) == result.valid


def test_what_was_raced_together_is_not_raced_again_alone(store: Store) -> None:
    run(FakeExecutor(time_us=lambda config: 150.0 if "STEP" in config else median_us(config)), store)
    executor = FakeExecutor()
    result = run(executor, store, [VALLEY])
    assert (executor.raced, executor.submitted) == ([], [])
    assert result.winner is not None
    assert result.winner.config == BEST_VALLEY


def test_an_implementation_that_joins_is_raced_with_what_is_known(store: Store) -> None:
    run(FakeExecutor(), store, [VALLEY])
    executor = FakeExecutor()
    result = run(executor, store)
    assert {each.implementation for each in executor.candidates} == {"line"}
    assert {each.implementation for each in executor.raced[0]} == {"line", "valley"}
    assert result.winner is not None
    assert result.winner.implementation == "line"


def test_what_is_served_today_is_raced(store: Store) -> None:
    served = max(valid(VALLEY), key=median_us)
    executor = FakeExecutor()
    run(executor, store, served=PriorPick(Candidate("valley", served), "nearest", 0.03, 4))
    assert Candidate("valley", served) in executor.raced[0]
    assert executor.candidates[0] == Candidate("valley", served)
    raced = [row for row in store.trials(SYNTHETIC_PAIR.name) if row.stage is Stage.RACE]
    (its_own,) = (row for row in raced if row.candidate == Candidate("valley", served))
    assert {row.implementation for row in raced} == {"line", "valley"}
    assert {row.served_timing for row in raced} == {its_own.timing}  # of the rows of both
    assert {(row.served_rung, row.expected_regret, row.evidence) for row in raced} == {("nearest", 0.03, 4)}
    assert [row.is_served for row in raced] == [row is its_own for row in raced]


@pytest.mark.parametrize("capacity", [1, 8])
@pytest.mark.parametrize("seconds", [2.5, 6.0])
def test_what_is_served_is_raced_whatever_implementation_it_is_of(
    store: Store, monkeypatch: pytest.MonkeyPatch, capacity: int, seconds: float
) -> None:
    """No verdict of its implementation came in time: the first one's configs took all of it, or it is the last."""
    executor = FakeExecutor(capacity=capacity, order=1, trial_seconds=1.0)
    clock(monkeypatch, executor)
    served = Candidate("line", Config(STEP=5))  # the fastest of all
    result = run(executor, store, limits=Limits(seconds=seconds), served=PriorPick(served, "exact"))
    assert executor.candidates[0] == served
    assert served in executor.raced[-1]
    assert result.winner is not None
    assert result.winner.candidate == served
    assert result.winner.served_timing == result.winner.timing


class Newcomer(FakeExecutor):
    """Of the line nothing is known: it fails, is slower, takes long to compile, or screens as it does not race."""

    def __init__(self, kind: str, order: int) -> None:
        self._kind, self._is_racing = kind, False
        hangs = dict.fromkeys(valid(LINE), Status.HANG) if kind == "hangs" else None
        super().__init__(capacity=8, order=order, time_us=self._time, failures=hangs, trial_seconds=0.5)

    def _time(self, config: Config) -> float:
        if "STEP" not in config:
            return median_us(config)
        looks = {"slower": 3.0, "looks fast": 2.0 if self._is_racing else 0.3}
        return looks.get(self._kind, 1.2) * median_us(config)

    def collect(self, timeout: float | None = None) -> Outcome | None:
        outcome = super().collect(timeout)
        if outcome is not None and outcome.implementation == "line" and self._kind in ("hangs", "compiles long"):
            self.elapsed += 4.0
        return outcome

    def race(self, *arguments: Any, **named: Any) -> Race:
        self._is_racing = True
        return super().race(*arguments, **named)


@pytest.mark.parametrize("kind", ["slower", "hangs", "compiles long", "looks fast"])
@pytest.mark.parametrize("seconds", [2.5, 6.0, 15.0])
@pytest.mark.parametrize("order", range(3))
def test_one_that_nothing_is_known_of_costs_a_small_budget_nothing_of_what_is_served(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: str, seconds: float, order: int
) -> None:
    executor = Newcomer(kind, order)
    clock(monkeypatch, executor)
    portfolio = Candidate("valley", BEST_VALLEY)
    result = run(
        executor,
        store,
        limits=Limits(seconds=seconds),
        served=PriorPick(portfolio, "default", 0.02, 8),
        defaults={"valley": BEST_VALLEY},
    )
    assert executor.candidates[0] == portfolio
    assert portfolio in executor.raced[-1]
    assert result.winner is not None
    assert result.winner.timing is not None
    assert result.winner.timing.median_us <= 1.01 * median_us(BEST_VALLEY)


def test_what_is_served_and_not_valid_here_is_neither_tried_nor_raced(store: Store) -> None:
    outside = Candidate("line", Config(STEP=99))
    executor = FakeExecutor(capacity=8)
    run(executor, store, served=PriorPick(outside, "nearest"))
    run(executor, store, served=PriorPick(Candidate("gone", Config(STEP=5)), "nearest"))
    assert {each.config for each in executor.candidates} <= {*valid(VALLEY), *valid(LINE)}
    assert outside not in executor.raced[0]


@pytest.mark.parametrize(("trials", "ahead"), [(1, 1), (2, 2), (9, 2)])
def test_what_is_submitted_ahead_is_within_the_limits_and_one_of_what_nothing_compiles_ahead(
    store: Store, monkeypatch: pytest.MonkeyPatch, trials: int, ahead: int
) -> None:
    in_place = replace(LINE, compiles_ahead=False)
    executor, submitted = FakeExecutor(capacity=8), []
    open_study = opening._open_study

    def note(*arguments: Any) -> Any:
        submitted.append(list(executor.candidates))
        return open_study(*arguments)

    monkeypatch.setattr(opening, "_open_study", note)
    served = Candidate("line", Config(STEP=3))
    known = PriorPick(served, "nearest")
    result = run(executor, store, [VALLEY, in_place], limits=Limits(trials=trials), served=known)
    first = [served, Candidate("valley", default(VALLEY))]  # and not the default of the same implementation
    assert submitted[0] == submitted[-1] == first[:ahead]
    assert (len(executor.candidates), result.measured) == (trials, trials)


def test_one_that_cannot_be_tuned_here_is_reported_and_left_out(store: Store) -> None:
    notes = Notes()
    result = run(FakeExecutor(), store, [VALLEY, refusing(LINE)], observer=notes)
    assert notes.valid == {"valley": len(valid(VALLEY))}
    (line,) = (part for part in result.implementations if part.implementation == "line")
    assert "no tensor cores" in line.skipped
    assert notes.skipped == [f"line: {line.skipped}"]
    barren = replace(LINE, space=replace(LINE.space, reject=lambda config, shape, device: "nothing fits"))
    run(FakeExecutor(), Store(store.root / "barren"), [VALLEY, barren], observer=notes)
    assert "nothing fits" in notes.skipped[-1]


def test_where_none_can_be_tuned_the_reasons_are_told(store: Store) -> None:
    with pytest.raises(InvalidShapeError, match="no tensor cores"):
        run(FakeExecutor(), store, [refusing(VALLEY), refusing(LINE)])
    barren = replace(LINE, space=replace(LINE.space, reject=lambda config, shape, device: "nothing fits"))
    with pytest.raises(SearchError, match=r"no tensor cores.*nothing fits"):
        run(FakeExecutor(), store, [refusing(VALLEY), barren])


def test_what_nothing_compiles_ahead_has_one_config_in_flight(store: Store) -> None:
    in_place = replace(LINE, compiles_ahead=False)
    executor = FakeExecutor(capacity=8)
    most = 0
    submit = executor.submit

    def count(candidate: Candidate) -> None:
        nonlocal most
        submit(candidate)
        most = max(most, sum(each.implementation == "line" for each in executor._in_flight))

    executor.submit = count  # type: ignore[method-assign]
    run(executor, store, [VALLEY, in_place])
    assert (most, executor.most_in_flight) == (1, 8)


def test_a_slow_start_does_not_end_a_search_before_its_first_verdict(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeExecutor(trial_seconds=20.0)
    clock(monkeypatch, executor)
    result = run(executor, store, limits=Limits(seconds=10.0))
    assert (result.measured, result.ending) == (1, Ending.SECONDS)
    assert result.winner is not None
    dead = FakeExecutor(trial_seconds=1000.0)
    with pytest.raises(SearchError, match="ended before one config was measured"):
        run(dead, Store(store.root / "dead"), limits=Limits(seconds=10.0))


def test_an_interrupted_search_keeps_the_rows_of_all(store: Store) -> None:
    result = run(FakeExecutor(interrupt_at=6), store)
    assert (result.interrupted, result.winner, result.measured) == (True, None, 5)
    assert sorted(row.implementation for row in store.trials(SYNTHETIC_PAIR.name)) == ["line"] * 2 + ["valley"] * 3
