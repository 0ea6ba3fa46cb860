"""Rows that a search leaves on disk before it tells an observer: they say where they come from."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.operation import Operation
from autotune.search import Observer
from autotune.shape import Shape
from autotune.table import Store
from autotune.trial import Candidate, Stage, Trial
from tests.search.session.searching import SPACE, rows, run
from tests.search.synthetic import SHAPE, SMALL, FakeExecutor, default, median_us, timing


def test_rows_say_where_they_come_from(store: Store) -> None:
    executor = FakeExecutor()
    run(executor, store, SMALL, trials=10, seed=7)
    run(executor, store, SMALL, trials=None, seed=8)
    found = store.trials(SMALL.operation)
    assert sorted(trial.number for trial in found) == list(range(1, len(found) + 1))
    assert len({trial.study for trial in found}) == 1
    assert [trial.seed for trial in rows(store, Stage.SCREEN, SMALL)] == [7] * 10 + [8] * (len(SPACE) - 10)
    shared = {(t.operation, t.source_hash, t.shape, t.device, t.toolchain, t.policy, t.executor) for t in found}
    assert shared == {
        (SMALL.operation, SMALL.source_hash, SHAPE, NVIDIA_H200, executor.toolchain, executor.policy, executor.name)
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


class _Witness(Observer):
    """Checks that what it hears of is on disk, and notes the order of events."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.events: list[object] = []

    def on_start(
        self, operation: Operation[Any], shape: Shape, *, valid: Mapping[str, int], resumed: int, best: Trial | None
    ) -> None:
        self.events.append((operation.name, shape, dict(valid), resumed))

    def on_trial(self, trial: Trial) -> None:
        assert trial in self._store.trials(trial.operation)
        self.events.append(trial.config)

    def on_race(self, candidates: Sequence[Candidate]) -> None:
        self.events.append([candidate.config for candidate in candidates])


def test_an_observer_hears_of_trials_that_are_on_disk(store: Store) -> None:
    run(FakeExecutor(), store, SMALL, trials=2)
    executor, witness = FakeExecutor(capacity=3), _Witness(store)
    run(executor, store, SMALL, trials=8, observer=witness)
    start = (SMALL.operation, SHAPE, {"valley": len(SPACE)}, 2)
    assert witness.events == [start, *executor.collected, *executor.races]


def test_a_search_leaves_one_part(store: Store) -> None:
    run(FakeExecutor(), store, SMALL, trials=None)
    run(FakeExecutor(), store, SMALL, trials=None)
    assert len([path for path in store.root.rglob("*.parquet") if len(path.stem) == 64]) == 1  # named by its SHA-256
