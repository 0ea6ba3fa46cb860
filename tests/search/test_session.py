"""A search tries the default first, measures nothing twice, keeps everything, and always chooses the same winner."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import SearchError
from autotune.operation import Operation
from autotune.search import SAMPLERS, Ending, Limits, Sampler, SearchResult, Silent, search, session
from autotune.search.convergence import PATIENCE, Convergence
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Outcome, Policy, Stage, Status, Trial
from tests.search.synthetic import OPERATION, SHAPE, SMALL, FakeExecutor, default, median_us, message, timing, valid

UNREACHED = (Status.INVALID, Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.OUT_OF_RESOURCES)
FAILURES = [status for status in Status if status is not Status.OK]
SPACE = valid(SMALL)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def run(
    executor: FakeExecutor,
    store: Store,
    operation: Operation[Any] = OPERATION,
    *,
    trials: int | None = 12,
    seconds: float | None = None,
    converge: bool = False,
    **options: Any,
) -> SearchResult:
    return search(operation, SHAPE, executor, store, limits=Limits(trials, seconds, converge), **options)


def rows(store: Store, stage: Stage, operation: Operation[Any] = OPERATION) -> list[Trial]:
    return [trial for trial in store.trials(operation.name) if trial.stage is stage]


def winner_of(result: SearchResult) -> Config:
    assert result.winner is not None
    return result.winner.config


# Which config is next


def test_the_default_comes_first_and_then_the_neighbours(store: Store) -> None:
    neighbours = valid(OPERATION)[100:103]
    invalid = Config({**default(OPERATION), "BLOCK_Q": 256, "BLOCK_K": 256})
    executor = FakeExecutor()
    run(executor, store, neighbours=[invalid, default(OPERATION), *neighbours, neighbours[0]])
    assert executor.submitted[:4] == [default(OPERATION), *neighbours]
    assert invalid not in executor.submitted


@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_nothing_is_measured_twice(store: Store, capacity: int, sampler: Sampler) -> None:
    executor = FakeExecutor(capacity=capacity)
    result = run(executor, store, SMALL, trials=None, sampler=sampler)
    assert sorted(map(str, executor.submitted)) == sorted(map(str, SPACE))
    assert executor.submitted[0] == default(SMALL)
    assert (result.measured, result.resumed) == (len(SPACE), 0)


def test_a_space_that_fits_the_budget_is_enumerated(store: Store) -> None:
    executor = FakeExecutor()
    run(executor, store, SMALL, trials=len(SPACE))
    assert executor.submitted[0] == default(SMALL)
    assert sorted(executor.submitted, key=SMALL.space.order) == sorted(SPACE, key=SMALL.space.order)


def test_the_same_seed_tries_the_same_configs(tmp_path: Path) -> None:
    executors = [FakeExecutor() for _ in range(3)]
    for number, (executor, seed) in enumerate(zip(executors, (0, 0, 1), strict=True)):
        run(executor, Store(tmp_path / str(number)), trials=20, seed=seed)
    same, again, other = (executor.submitted for executor in executors)
    assert same == again != other


# Resuming


@pytest.mark.parametrize("capacity", [1, 4])
def test_a_second_run_measures_only_what_is_missing(store: Store, capacity: int) -> None:
    first, second, third = (FakeExecutor(capacity=capacity) for _ in range(3))
    run(first, store, trials=10)
    result = run(second, store, trials=16)
    assert (len(first.submitted), len(second.submitted)) == (10, 6)
    assert not set(first.submitted) & set(second.submitted)
    assert (result.resumed, result.measured) == (10, 6)
    assert result.statuses == {Status.OK: 16}
    again = run(third, store, trials=16)
    assert (third.submitted, third.races) == ([], [])
    assert (again.winner, again.ties, again.best_screened) == (result.winner, result.ties, result.best_screened)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_finished_space_is_not_measured_again(store: Store, sampler: Sampler) -> None:
    run(FakeExecutor(), store, SMALL, trials=None, sampler="exhaustive")
    executor = FakeExecutor()
    assert run(executor, store, SMALL, trials=None, sampler=sampler).measured == 0
    assert (executor.submitted, executor.races) == ([], [])


@pytest.mark.parametrize(
    ("change", "resumed"),
    [
        ({"triton": "3.9.0"}, 0),
        ({"ptxas": "13.0"}, 0),
        ({"tool": "0.2.0"}, 12),
        ({"torch": "2.14"}, 12),
        ({"driver": "590"}, 12),
    ],
    ids=str,
)
def test_only_another_compiler_forgets_what_was_measured(store: Store, change: dict[str, str], resumed: int) -> None:
    run(FakeExecutor(), store)
    toolchain = replace(FakeExecutor().toolchain, **change)
    executor = FakeExecutor(toolchain=toolchain)
    assert run(executor, store).resumed == resumed
    assert len(executor.submitted) == 12 - resumed


def test_another_source_forgets_what_was_measured(store: Store) -> None:
    run(FakeExecutor(), store)
    result = run(FakeExecutor(), store, replace(OPERATION, entry=("median_us",)))
    assert (result.resumed, result.measured) == (0, 12)
    assert len({trial.source_hash for trial in rows(store, Stage.RACE)}) == 2


def test_configs_that_a_changed_space_rejects_are_forgotten(store: Store) -> None:
    run(FakeExecutor(), store, SMALL, trials=None)
    kept = [config for config in SPACE if config["BLOCK_K"] != 64]  # 64 was the fastest
    narrow = replace(SMALL.space, reject=lambda config, shape, device: None if config in kept else "too narrow")
    result = run(FakeExecutor(), store, replace(SMALL, space=narrow), trials=None)
    assert (result.resumed, result.measured) == (len(kept), 0)
    assert winner_of(result) in kept


@pytest.mark.parametrize(
    "other",
    [FakeExecutor(policy=Policy(cache="warm")), replace(SHAPE, seq_q=2048)],
    ids=["policy", "shape"],
)
def test_another_policy_or_shape_is_another_study(store: Store, other: FakeExecutor | Shape) -> None:
    run(FakeExecutor(), store)
    executor, shape = (other, SHAPE) if isinstance(other, FakeExecutor) else (FakeExecutor(), other)
    result = search(OPERATION, shape, executor, store, limits=Limits(12))
    assert (result.resumed, result.measured) == (0, 12)
    assert len({trial.study for trial in store.trials(OPERATION.name)}) == 2


# Limits


@pytest.mark.parametrize("capacity", [1, 4])
def test_only_configs_that_reached_the_device_count(store: Store, capacity: int) -> None:
    reasons = itertools.cycle(UNREACHED)
    failures = {config: next(reasons) for config in valid(OPERATION)[::2]}
    executor = FakeExecutor(capacity=capacity, failures=failures)
    result = run(executor, store, trials=15)
    assert result.statuses[Status.OK] == 15
    assert result.measured == len(executor.submitted) > 15


def test_configs_that_failed_on_the_device_count(store: Store) -> None:
    reasons = itertools.cycle(status for status in FAILURES if status not in UNREACHED)
    executor = FakeExecutor(failures={config: next(reasons) for config in valid(OPERATION)[::2]})
    result = run(executor, store, trials=15, sampler="random")
    assert result.measured == 15
    assert len(result.statuses) > 3


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> FakeExecutor:
    """An executor whose trials take a second each, by the clock that the search reads."""
    executor = FakeExecutor(trial_seconds=1.0)
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: executor.elapsed))
    return executor


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


def test_without_limits_the_whole_space_is_tried(store: Store, clocked: FakeExecutor) -> None:
    assert run(clocked, store, SMALL, trials=None).measured == len(SPACE)
    assert clocked.race_seconds == [12.0]


# Failures


@pytest.mark.parametrize("capacity", [1, 4])
def test_every_failure_is_a_row_and_ends_nothing(store: Store, capacity: int) -> None:
    failures = dict(zip(SPACE, FAILURES, strict=False))
    result = run(FakeExecutor(failures=failures, capacity=capacity), store, SMALL, trials=None)
    screened = {trial.config: trial for trial in rows(store, Stage.SCREEN, SMALL)}
    assert list(failures.values()) == FAILURES
    for config, status in failures.items():
        row = screened[config]
        assert (row.status, row.outcome.message) == (status, message(status))
        assert (row.timing is None) == (status is not Status.SLOW)
    assert result.statuses == Counter(FAILURES) | Counter({Status.OK: len(SPACE) - len(FAILURES)})
    assert winner_of(result) == min(SPACE[len(FAILURES) :], key=median_us)


def test_without_one_correct_config_the_statuses_are_counted(store: Store) -> None:
    reasons = itertools.cycle(status for status in FAILURES if status is not Status.SLOW)
    failures = {config: next(reasons) for config in SPACE}
    executor = FakeExecutor(failures=failures)
    with pytest.raises(SearchError, match=r"^no config is valid and correct here \(.*for example: planted: ") as caught:
        run(executor, store, SMALL, trials=None)
    assert all(f"{count} {status}" in str(caught.value) for status, count in Counter(failures.values()).items())
    assert len(rows(store, Stage.SCREEN, SMALL)) == len(SPACE)
    assert executor.races == []  # nothing is left that could be raced


@pytest.mark.parametrize("started", [0.0, -9.0])
def test_a_budget_too_short_to_measure_stores_no_winner(store: Store, clocked: FakeExecutor, started: float) -> None:
    with pytest.raises(SearchError, match="ended before one config was measured"):
        run(clocked, store, trials=None, seconds=1.0, started=started)
    assert clocked.race_seconds == []
    assert rows(store, Stage.RACE) == []


# The race and the winner


def test_the_fastest_are_raced_against_the_default(store: Store) -> None:
    executor = FakeExecutor()
    result = run(executor, store, SMALL, trials=None)
    (raced,) = executor.races
    times = sorted(median_us(config) for config in SPACE)[: session.FINALISTS]
    close = [time for time in times if time <= session.FINALIST_RATIO * times[0]]
    assert [median_us(config) for config in raced] == [*close, median_us(default(SMALL))]
    assert raced[-1] == default(SMALL)
    assert winner_of(result) == min(SPACE, key=median_us)
    assert result.winner is not None
    assert result.winner.default_timing == timing(median_us(default(SMALL)))


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


def _alike(config: Config) -> float:
    """All configs as fast as each other but for the default."""
    return 100.0 if config != default(SMALL) else 200.0


@pytest.mark.parametrize("time_us", [median_us, _alike], ids=["valley", "all alike"])
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


# Ctrl-C


@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("call", [1, 2, 7, 8, 9])  # eight trials and the race
def test_an_interrupted_search_keeps_its_rows_and_continues(store: Store, call: int, capacity: int) -> None:
    executor = FakeExecutor(interrupt_at=call, capacity=capacity)
    result = run(executor, store, trials=8)
    assert result.interrupted
    assert result.winner is None
    kept = [trial.config for trial in rows(store, Stage.SCREEN)]
    assert kept == executor.collected
    assert (result.measured, len(kept)) == (call - 1, call - 1)
    assert (result.best_screened is None) == (call == 1)
    following = FakeExecutor(capacity=capacity)
    done = run(following, store, trials=8)
    assert len(following.submitted) == 8 - len(kept)
    assert not set(following.submitted) & set(kept)
    assert (done.interrupted, len(following.races)) == (False, 1)
    assert done.winner is not None


def test_an_interrupted_search_still_names_the_winner_of_an_earlier_race(store: Store) -> None:
    before = run(FakeExecutor(), store, trials=5)
    after = run(FakeExecutor(interrupt_at=2), store, trials=10)
    assert after.interrupted
    assert after.winner == before.winner


# Rows


def test_rows_say_where_they_come_from(store: Store) -> None:
    executor = FakeExecutor()
    run(executor, store, SMALL, trials=10, seed=7)
    run(executor, store, SMALL, trials=None, seed=8)
    found = store.trials(SMALL.name)
    assert sorted(trial.number for trial in found) == list(range(1, len(found) + 1))
    assert len({trial.study for trial in found}) == 1
    assert [trial.seed for trial in rows(store, Stage.SCREEN, SMALL)] == [7] * 10 + [8] * (len(SPACE) - 10)
    shared = {(t.operation, t.source_hash, t.shape, t.device, t.toolchain, t.policy, t.executor) for t in found}
    assert shared == {
        (SMALL.name, SMALL.source_hash, SHAPE, NVIDIA_H200, executor.toolchain, executor.policy, executor.name)
    }
    assert {trial.worker for trial in found} == {executor.worker}
    assert all(trial.is_default == (trial.config == default(SMALL)) for trial in found)
    for trial in found:
        assert trial.timing is not None
        assert trial.tflops == pytest.approx(1e9 / trial.timing.median_us / 1e6)


def test_rows_of_a_race_share_its_name_its_default_and_its_baseline(store: Store) -> None:
    run(FakeExecutor(), store, SMALL, trials=None)
    assert {(t.race_id, t.default_timing, t.baseline) for t in rows(store, Stage.SCREEN, SMALL)} == {("", None, "")}
    raced = rows(store, Stage.RACE, SMALL)
    ((race_id, default_timing, baseline, baseline_timing),) = {
        (trial.race_id, trial.default_timing, trial.baseline, trial.baseline_timing) for trial in raced
    }
    assert race_id
    assert default_timing == timing(median_us(default(SMALL)))
    assert (baseline, baseline_timing) == ("sdpa_flash", timing(200.0))
    assert {(t.outcome.resources.shared_bytes, t.outcome.compile_seconds) for t in raced} == {(1024, 0.5)}


class _Witness(Silent):
    """Checks that what it hears of is on disk, and notes the order of events."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.events: list[object] = []

    def on_start(self, operation: Operation[Any], shape: Shape, *, space: int, resumed: int) -> None:
        self.events.append((operation.name, shape, space, resumed))

    def on_trial(self, trial: Trial) -> None:
        assert trial in self._store.trials(trial.operation)
        self.events.append(trial.config)

    def on_race(self, configs: Sequence[Config]) -> None:
        self.events.append(list(configs))


def test_an_observer_hears_of_trials_that_are_on_disk(store: Store) -> None:
    run(FakeExecutor(), store, SMALL, trials=2)
    executor, witness = FakeExecutor(capacity=3), _Witness(store)
    run(executor, store, SMALL, trials=8, observer=witness)
    start = (SMALL.name, SHAPE, len(SPACE), 2)
    assert witness.events == [start, *executor.collected, *executor.races]


def test_a_search_leaves_one_file(store: Store) -> None:
    run(FakeExecutor(), store, SMALL, trials=None)
    run(FakeExecutor(), store, SMALL, trials=None)
    assert len([path for path in store.root.rglob("*") if path.is_file()]) == 1


# When to stop, and what to say


def test_a_search_that_converged_stops(store: Store) -> None:
    result = run(FakeExecutor(), store, trials=None, converge=True)
    assert result.ending is Ending.CONVERGED
    assert len(valid(OPERATION)) / 4 <= result.measured < len(valid(OPERATION)) / 2
    assert result.winner is not None


def test_gains_put_convergence_off() -> None:
    convergence = Convergence((), valid=40)
    time_us = 1000.0
    for _ in range(60):
        assert not convergence.is_reached
        time_us *= 0.98
        convergence.note(Outcome(config=SPACE[0], status=Status.OK, timing=timing(time_us)))
    for _ in range(PATIENCE):
        assert not convergence.is_reached
        convergence.note(Outcome(config=SPACE[0], status=Status.OK, timing=timing(0.995 * time_us)))
    assert convergence.is_reached


def test_a_contended_race_is_repeated(store: Store) -> None:
    assert run(FakeExecutor(contended=True), store).contended > 0
    again = FakeExecutor()
    result = run(again, store)
    assert (len(again.races), again.submitted) == (1, [])
    assert result.winner is not None
    assert not result.winner.outcome.conditions.contended


def test_a_sweep_measures_what_a_search_stopped_early(store: Store) -> None:
    slow = dict.fromkeys(SPACE[::3], Status.SLOW)
    run(FakeExecutor(failures=slow), store, SMALL, trials=None)
    sweep = FakeExecutor()
    result = run(sweep, store, SMALL, trials=None, sampler="exhaustive")
    assert set(sweep.submitted) == set(slow)
    assert {trial.status for trial in result.recorded} == {Status.OK}


def test_a_space_without_a_valid_config_says_why(store: Store) -> None:
    barren = replace(SMALL, space=replace(SMALL.space, reject=lambda config, shape, device: "nothing fits"))
    with pytest.raises(SearchError, match=r"no config of .* is valid .*: nothing fits"):
        run(FakeExecutor(), store, barren)
