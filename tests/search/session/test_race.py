"""Who is raced, who wins, and when a race is repeated."""

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import SearchError
from autotune.executor import DisturbedRaceError, Race
from autotune.search import rotation
from autotune.search.finalists import FINALIST_RATIO, FINALISTS
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Candidate, PriorPick, Stage, Status
from tests.search.session.searching import SPACE, clock, rows, run, winner_of
from tests.search.synthetic import SMALL, FakeExecutor, default, median_us, timing


def test_the_fastest_are_raced_against_the_default(store: Store) -> None:
    executor = FakeExecutor()
    result = run(executor, store, SMALL, trials=None)
    (raced,) = executor.races
    times = sorted(median_us(config) for config in SPACE)[:FINALISTS]
    close = [time for time in times if time <= FINALIST_RATIO * times[0]]
    assert [median_us(config) for config in raced] == [*close, median_us(default(SMALL))]
    assert raced[-1] == default(SMALL)
    assert winner_of(result) == min(SPACE, key=median_us)
    assert result.winner is not None
    assert result.winner.default_timing == timing(median_us(default(SMALL)))


@pytest.mark.parametrize("capacity", [1, 4])
def test_the_finalists_as_they_stand_are_told_ahead_of_the_race(store: Store, capacity: int) -> None:
    executor = FakeExecutor(capacity=capacity)
    run(executor, store, trials=30)
    assert [(number, is_near) for number, _, is_near in executor.expected] == [
        (number, number > 30 - capacity) for number in range(rotation.EXPECTED, 30)
    ]
    assert len(set(executor.raced[0]) - set(executor.expected[-1][1])) <= 1  # by the last verdict


def test_a_race_after_which_the_gpu_is_dropped_is_kept_and_run_again_elsewhere(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, race = FakeExecutor(contended=True), FakeExecutor.race

    def disturbed(self: FakeExecutor, candidates: list[Candidate], **options: Any) -> Race:
        raise DisturbedRaceError("another process used it", race(self, candidates, **options))

    with monkeypatch.context() as patch:
        patch.setattr(FakeExecutor, "race", disturbed)
        with pytest.raises(DisturbedRaceError):
            run(executor, store)
    kept = rows(store, Stage.RACE)
    assert {row.config for row in kept} == set(executor.races[0])
    other = FakeExecutor()
    assert run(other, store).is_decided
    assert not other.submitted
    assert len(rows(store, Stage.RACE)) == len(kept) + len(other.races[0])


def test_a_sweep_tells_of_no_race(store: Store) -> None:
    executor = FakeExecutor()
    run(executor, store, SMALL, trials=None, sampler="exhaustive")
    assert executor.raced
    assert not executor.expected


def test_what_is_served_as_default_and_what_people_write_are_tried_first_raced_and_stored(store: Store) -> None:
    near, *_, served, first, second = sorted(SPACE, key=median_us)
    by_hand = [first, second]
    executor = FakeExecutor()
    result = run(
        *(executor, store, SMALL),
        trials=12,
        neighbours={"valley": [near]},
        defaults={"valley": served},
        heuristics={"valley": by_hand},
    )
    assert executor.submitted[:5] == [served, near, default(SMALL), *by_hand]
    assert {served, *by_hand} <= set(executor.races[0])
    assert default(SMALL) not in executor.races[0]
    won = result.winner
    assert won is not None
    assert (won.default_config, won.default_timing) == (served, timing(median_us(served)))
    assert won.heuristic_timing == timing(min(map(median_us, by_hand)))
    assert {row.config for row in rows(store, Stage.RACE, SMALL) if row.is_default} == {served}


def test_a_config_written_by_hand_that_failed_is_not_raced(store: Store) -> None:
    slow, fails = sorted(SPACE, key=median_us)[-2:]
    executor = FakeExecutor(failures={fails: Status.COMPILE_ERROR})
    result = run(executor, store, SMALL, trials=8, heuristics={"valley": [fails, slow]})
    assert slow in executor.races[0]
    assert fails not in executor.races[0]
    assert result.winner is not None
    assert result.winner.heuristic_timing == timing(median_us(slow))


@pytest.mark.parametrize(
    ("status", "is_raced"),
    [(Status.OK, True), (Status.SLOW, True), (Status.HANG, False), (Status.COMPILE_ERROR, False)],
)
def test_a_default_that_failed_is_not_raced(store: Store, status: Status, is_raced: bool) -> None:
    """It would take the other finalists along, in a worker that it hangs or crashes."""
    executor = FakeExecutor(failures={default(SMALL): status})
    result = run(executor, store, SMALL, trials=6)
    assert (default(SMALL) in executor.races[0]) == is_raced
    assert result.winner is not None
    assert (result.winner.default_timing is not None) == is_raced


def test_a_finalist_that_fails_in_the_race_does_not_win(store: Store) -> None:
    first, second = sorted(SPACE, key=median_us)[:2]
    result = run(FakeExecutor(race_failures={first: Status.NONDETERMINISTIC}), store, SMALL, trials=None)
    assert winner_of(result) == second
    assert Status.NONDETERMINISTIC in {trial.status for trial in rows(store, Stage.RACE, SMALL)}


def _close(config: Config) -> float:
    """All within a percent of each other, in the order of the space, but for the default."""
    return 100.0 + 0.02 * SPACE.index(config) if config != default(SMALL) else 200.0


def test_where_a_race_refutes_all_that_is_close_the_next_few_are_raced(store: Store) -> None:
    first, *others = sorted(SPACE, key=_close)
    family = [first, *others[: FINALISTS - 1]]
    following = others[FINALISTS - 1 :][:FINALISTS]
    executor = FakeExecutor(race_failures=dict.fromkeys(family, Status.WRONG_RESULT), time_us=_close)
    result = run(executor, store, SMALL, trials=None)
    assert executor.races == [[*family, default(SMALL)], [*following, default(SMALL)]]
    assert winner_of(result) == following[0]
    assert {trial.config for trial in result.ties} <= set(following)
    again = FakeExecutor(time_us=_close)
    assert winner_of(run(again, store, SMALL, trials=None)) == following[0]
    assert (again.races, again.submitted) == ([], [])


def test_what_a_race_refuted_is_never_raced_again(store: Store) -> None:
    fastest = sorted(SPACE, key=_close)[:FINALISTS]
    hung = fastest[1]
    contended = FakeExecutor(race_failures={hung: Status.HANG}, time_us=_close, contended=True)
    run(contended, store, SMALL, trials=None)
    assert contended.races[0] == [*fastest, default(SMALL)]
    again = FakeExecutor(time_us=_close)
    run(again, store, SMALL, trials=None)
    assert again.races == [[config for config in (*fastest, default(SMALL)) if config != hung]]


def test_no_race_follows_when_the_budget_is_spent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeExecutor(race_failures=dict.fromkeys(SPACE[:-1], Status.WRONG_RESULT), time_us=_close)
    clock(monkeypatch, executor)
    run(executor, store, SMALL, trials=None, seconds=10.0, served=PriorPick(Candidate("valley", SPACE[-1]), "nearest"))
    spent = len(executor.races)
    assert executor.elapsed >= 10.0
    assert 1 <= spent < len(SPACE) / FINALISTS


def _alike(config: Config) -> float:
    """All configs as fast as each other but for the default."""
    return 100.0 if config != default(SMALL) else 200.0


@pytest.mark.parametrize("time_us", [median_us, _alike], ids=["valley", "all alike"])
@pytest.mark.slow
def test_the_winner_does_not_depend_on_the_order_in_which_trials_end(tmp_path: Path, time_us: Any) -> None:
    finals = set()
    for order in range(3):
        executor = FakeExecutor(capacity=5, order=order, time_us=time_us)
        result = run(executor, Store(tmp_path / str(order)), SMALL, trials=None, sampler="exhaustive")
        assert result.best_screened is not None
        finals.add((winner_of(result), result.best_screened.config, *executor.races[0]))
    assert len(finals) == 1


def test_a_race_is_repeated_only_for_new_finalists(store: Store) -> None:
    first, repeated = FakeExecutor(), FakeExecutor()
    run(first, store, SMALL, trials=10)
    run(repeated, store, SMALL, trials=10)
    assert repeated.races == []
    best = next(config for config in SPACE if config not in first.submitted)
    renewed = FakeExecutor(time_us=lambda config: 50.0 if config == best else median_us(config))
    assert winner_of(run(renewed, store, SMALL, trials=None)) == best
    assert len(renewed.races) == 1


def test_a_race_that_its_worker_did_not_survive_is_repeated(store: Store) -> None:
    with pytest.raises(SearchError, match="worker_died"):
        run(FakeExecutor(race_failures=dict.fromkeys(SPACE, Status.WORKER_DIED)), store, SMALL, trials=None)
    executor = FakeExecutor()
    result = run(executor, store, SMALL, trials=None)
    assert (executor.submitted, len(executor.races)) == ([], 1)
    assert winner_of(result) == min(SPACE, key=median_us)


def test_a_contended_race_is_repeated(store: Store) -> None:
    assert run(FakeExecutor(contended=True), store).contended > 0
    again = FakeExecutor()
    result = run(again, store)
    assert (len(again.races), again.submitted) == (1, [])
    assert result.winner is not None
    assert not result.winner.outcome.conditions.contended
