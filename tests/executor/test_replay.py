"""A recorded sweep answers as it was recorded, for the nearest shape of its family, and for nothing else."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError
from autotune.executor import BaselineResult
from autotune.executor.replay import ReplayExecutor
from autotune.search import Limits, search
from autotune.search_spaces.flash_attention.operation import OPERATION as FLASH
from autotune.shape import AttentionShape
from autotune.table import Store
from autotune.trial import Candidate, Outcome, Policy, Stage, Status, Toolchain, Trial
from tests import flex_sample, sample
from tests.search.synthetic import (
    PAIR,
    SHAPE,
    SMALL,
    SYNTHETIC_PAIR,
    SYNTHETIC_SMALL,
    FakeExecutor,
    default,
    median_us,
    timing,
    valid,
)

SPACE = [Candidate("valley", config) for config in valid(SMALL)]
DEFAULT = Candidate("valley", default(SMALL))
FAILING = SPACE[3]
LONG = replace(SHAPE, seq_q=8192, seq_kv=8192)


def record(folder: Path, shape: AttentionShape = SHAPE, factor: float = 1.0, **options: object) -> list[Trial]:
    """A sweep by the fake executor; in the race every config takes a microsecond more."""
    toolchain = Toolchain("0.1.0", triton="3.6.0", torch=str(shape.seq_q))
    executor = FakeExecutor(
        toolchain=toolchain,
        failures={FAILING.config: Status.HANG},
        time_us=lambda config: factor * median_us(config) + len(executor.races),
        **options,  # type: ignore[arg-type]
    )
    search(SYNTHETIC_SMALL, shape, executor, Store(folder), limits=Limits(), sampler="exhaustive")
    return Store(folder).trials(SYNTHETIC_SMALL.name)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    return record(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory, sweep: list[Trial]) -> list[Trial]:
    """Of two shapes; the longer took ten times as long."""
    return [*sweep, *record(tmp_path_factory.mktemp("long"), LONG, 10.0)]


def answers(executor: ReplayExecutor, candidates: Sequence[Candidate]) -> list[Outcome]:
    for candidate in candidates:
        executor.submit(candidate)
    return [executor.collect() for _ in candidates]


def recorded(trials: Sequence[Trial], stage: Stage) -> dict[Candidate, Outcome]:
    return {trial.candidate: trial.outcome for trial in trials if trial.stage is stage}


def test_screening_answers_what_was_recorded(sweep: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    executor.open(SYNTHETIC_SMALL, SHAPE)
    assert {outcome.candidate: outcome for outcome in answers(executor, SPACE)} == recorded(sweep, Stage.SCREEN)
    assert answers(executor, [FAILING])[0].message == "planted: hang"


def test_a_race_answers_with_the_recorded_race(sweep: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    executor.open(SYNTHETIC_SMALL, SHAPE)
    raced, screened = recorded(sweep, Stage.RACE), recorded(sweep, Stage.SCREEN)
    outsider = next(candidate for candidate in SPACE if candidate not in raced)
    race = executor.race(list(raced), seconds=1.0)
    assert race.outcomes == tuple(raced.values())
    assert race.baselines == (BaselineResult("sdpa_flash", timing(200.0)),)
    assert raced[DEFAULT].timing == timing(median_us(DEFAULT.config) + 1)
    mixed = executor.race([*raced, outsider], seconds=1.0)  # times of two measurements are not compared
    assert mixed.outcomes == (*(screened[candidate] for candidate in raced), screened[outsider])
    assert mixed.baselines == ()


def test_a_race_drops_what_was_submitted(sweep: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    executor.open(SYNTHETIC_SMALL, SHAPE)
    executor.submit(SPACE[0])
    executor.race(SPACE[:1], seconds=1.0)
    assert answers(executor, [SPACE[1]])[0].candidate == SPACE[1]


def test_of_several_races_the_newest_answers(sweep: list[Trial]) -> None:
    newer = [
        replace(trial, race_id="z", outcome=replace(trial.outcome, timing=timing(50.0)), baseline="sdpa_cudnn")
        for trial in sweep
        if trial.stage is Stage.RACE
    ]
    executor = ReplayExecutor(NVIDIA_H200, [*newer, *sweep])
    executor.open(SYNTHETIC_SMALL, SHAPE)
    race = executor.race([DEFAULT], seconds=1.0)
    assert race.outcomes[0].timing == timing(50.0)
    assert race.fastest_baseline.name == "sdpa_cudnn"


def test_without_a_recorded_race_the_screening_answers(sweep: list[Trial]) -> None:
    screened = recorded(sweep, Stage.SCREEN)
    executor = ReplayExecutor(NVIDIA_H200, [trial for trial in sweep if trial.stage is Stage.SCREEN])
    executor.open(SYNTHETIC_SMALL, SHAPE)
    race = executor.race(SPACE[:2], seconds=1.0)
    assert race.outcomes == tuple(screened[candidate] for candidate in SPACE[:2])
    assert race.fastest_baseline == BaselineResult("")


@pytest.mark.parametrize(("seq", "source"), [(1024, SHAPE), (1500, SHAPE), (5000, LONG), (32768, LONG)])
def test_the_nearest_recorded_shape_is_named_and_answers(sweeps: list[Trial], seq: int, source: AttentionShape) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweeps)
    shape = replace(SHAPE, seq_q=seq, seq_kv=seq)
    assert executor.nearest(SYNTHETIC_SMALL, shape) == source
    if shape != source:
        with pytest.raises(MissingDependencyError, match="no sweep was recorded for"):
            executor.open(SYNTHETIC_SMALL, shape)
    executor.open(SYNTHETIC_SMALL, source)
    assert executor.toolchain.torch == str(source.seq_q)
    assert executor.policy == Policy()
    median = (10.0 if source == LONG else 1.0) * median_us(DEFAULT.config)
    assert answers(executor, [DEFAULT])[0].timing == timing(median)


@pytest.mark.parametrize(
    "change", [{"dtype": "float16"}, {"head_dim": 128, "head_dim_v": 128}, {"causal": False}, {"window": 256}], ids=str
)
def test_another_family_is_refused_with_what_is_recorded(sweep: list[Trial], change: dict[str, object]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    shape = replace(SHAPE, **change)  # type: ignore[arg-type]
    with pytest.raises(MissingDependencyError, match="no recorded sweep resembles") as caught:
        executor.open(SYNTHETIC_SMALL, shape)
    assert str(shape) in str(caught.value)
    assert str(SHAPE) in str(caught.value)


def test_of_many_recorded_shapes_those_most_alike_are_named_and_the_others_counted(sweep: list[Trial]) -> None:
    shapes = [replace(SHAPE, window=window, causal=causal) for window in (None, 8, 16) for causal in (True, False)]
    executor = ReplayExecutor(NVIDIA_H200, [replace(sweep[0], shape=shape) for shape in shapes])
    with pytest.raises(MissingDependencyError) as caught:
        executor.nearest(SYNTHETIC_SMALL, replace(SHAPE, window=32, causal=False))
    known = str(caught.value).partition(f"recorded on {NVIDIA_H200.name}: ")[2]
    assert known.partition(".")[0].endswith(" and 3 more")
    assert all(str(shape) in known for shape in shapes if not shape.causal)


def test_another_operation_is_refused(sweep: list[Trial]) -> None:
    expected = "no sweep of another is recorded on NVIDIA H200: .* `autotune lookup --operation another` says what is"
    with pytest.raises(MissingDependencyError, match=expected):
        ReplayExecutor(NVIDIA_H200, sweep).open(replace(SYNTHETIC_SMALL, name="another"), SHAPE)


def test_another_device_is_refused(sweep: list[Trial]) -> None:
    with pytest.raises(MissingDependencyError, match="no sweep was recorded on NVIDIA H200"):
        ReplayExecutor(replace(NVIDIA_H200, power_cap_watts=500), sweep)


def test_a_config_that_was_not_recorded_is_invalid(sweep: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, [trial for trial in sweep if trial.candidate != SPACE[0]])
    executor.open(SYNTHETIC_SMALL, SHAPE)
    (outcome,) = answers(executor, [SPACE[0]])
    assert (outcome.status, outcome.message) == (Status.INVALID, f"not recorded for {SHAPE}")


def test_opening_another_problem_drops_what_was_submitted(sweep: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    executor.open(SYNTHETIC_SMALL, SHAPE)
    executor.submit(SPACE[0])
    executor.open(SYNTHETIC_SMALL, SHAPE)
    assert answers(executor, [SPACE[1]])[0].candidate == SPACE[1]


@pytest.mark.parametrize("shape", [SHAPE, LONG], ids=str)
def test_a_replayed_search_finds_what_the_sweep_found_and_resumes(
    sweeps: list[Trial], tmp_path: Path, shape: AttentionShape
) -> None:
    """Also where sweeps of several toolchains are recorded: the one that answers is the one that is resumed."""
    sweeps = [
        replace(trial, toolchain=replace(trial.toolchain, triton="3.9.0")) if trial.shape == LONG else trial
        for trial in sweeps
    ]
    done, again = (
        search(SYNTHETIC_SMALL, shape, ReplayExecutor(NVIDIA_H200, sweeps), Store(tmp_path), limits=Limits())
        for _ in range(2)
    )
    assert done.winner is not None
    assert done.winner.candidate == min(set(SPACE) - {FAILING}, key=lambda each: median_us(each.config))
    assert done.winner.executor == "replay"
    assert done.statuses == {Status.OK: len(SPACE) - 1, Status.HANG: 1}
    assert (again.measured, again.winner) == (0, done.winner)


def test_rows_of_an_implementation_have_the_toolchain_that_recorded_it() -> None:
    """Two implementations of one operation, recorded with two versions of torch."""
    ours = [replace(trial, shape=flex_sample.SMALL) for trial in sample.sweep(sample.shape(64))[:3]]
    executor = ReplayExecutor(NVIDIA_H200, [*ours, *flex_sample.sweep()])
    executor.open(FLASH, flex_sample.SMALL)
    assert executor.recorded_implementations(FLASH, flex_sample.SMALL) == ["triton", "flex"]
    assert executor.toolchain_of("flex").torch == "2.11.0+cu130"
    assert executor.toolchain == executor.toolchain_of("triton") == executor.toolchain_of("other")
    assert executor.toolchain.torch == "2.13.0"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    """Two implementations, of each a sweep of its own, and at the longer shape of one alone."""
    store = Store(tmp_path_factory.mktemp("pair"))
    for shape, tuned in ((SHAPE, PAIR[:1]), (SHAPE, PAIR[1:]), (LONG, PAIR[1:])):
        options: dict[str, Any] = {"implementations": tuned, "sampler": "exhaustive"}
        search(SYNTHETIC_PAIR, shape, FakeExecutor(), store, limits=Limits(), **options)
    return store.trials(SYNTHETIC_PAIR.name)


@pytest.mark.slow
def test_one_problem_answers_for_every_implementation_that_was_recorded(pair: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, pair)
    executor.open(SYNTHETIC_PAIR, SHAPE)
    best = {name: min(_timed(pair, name), key=lambda each: median_us(each.config)) for name in ("valley", "line")}
    assert [outcome.candidate for outcome in answers(executor, list(best.values()))] == list(best.values())
    mixed = executor.race(list(best.values()), seconds=1.0)  # they were not in one race
    assert [outcome.candidate for outcome in mixed.outcomes] == list(best.values())
    assert mixed.baselines == ()
    for candidate in best.values():
        assert executor.race([candidate], seconds=1.0).fastest_baseline.name == "sdpa_flash"


def _timed(trials: Sequence[Trial], name: str) -> list[Candidate]:
    return [trial.candidate for trial in trials if trial.implementation == name and trial.timing]


def test_the_nearest_shape_was_recorded_of_all_implementations_that_are_named(pair: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, pair)
    near_long = replace(LONG, seq_q=6000, seq_kv=6000)
    assert executor.nearest(SYNTHETIC_PAIR, near_long) == LONG
    assert executor.nearest(SYNTHETIC_PAIR, near_long, ["line"]) == LONG
    assert executor.nearest(SYNTHETIC_PAIR, near_long, ["line", "valley"]) == SHAPE
    with pytest.raises(MissingDependencyError, match=r"no sweep of synthetic_pair/line,other is recorded on"):
        executor.nearest(SYNTHETIC_PAIR, SHAPE, ["line", "other"])
