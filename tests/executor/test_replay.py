"""A recorded sweep answers as it was recorded, for the nearest shape of its family, and for nothing else."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError
from autotune.executor import BaselineResult
from autotune.executor.replay import ReplayExecutor
from autotune.search import Limits, search
from autotune.search_spaces.flash_attention import OPERATION as FLASH
from autotune.search_spaces.flex_attention import OPERATION as FLEX
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Outcome, Policy, Stage, Status, Toolchain, Trial
from tests.report import flex_sample, sample
from tests.search.synthetic import SHAPE, SMALL, FakeExecutor, default, median_us, timing, valid

SPACE = valid(SMALL)
FAILING = SPACE[3]
LONG = replace(SHAPE, seq_q=8192, seq_kv=8192)


def record(folder: Path, shape: AttentionShape = SHAPE, factor: float = 1.0, **options: object) -> list[Trial]:
    """A sweep by the fake executor; in the race every config takes a microsecond more."""
    toolchain = Toolchain("0.1.0", triton="3.6.0", torch=str(shape.seq_q))
    executor = FakeExecutor(
        toolchain=toolchain,
        failures={FAILING: Status.HANG},
        time_us=lambda config: factor * median_us(config) + len(executor.races),
        **options,  # type: ignore[arg-type]
    )
    search(SMALL, shape, executor, Store(folder), limits=Limits(), sampler="exhaustive")
    return Store(folder).trials(SMALL.name)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    return record(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory, sweep: list[Trial]) -> list[Trial]:
    """Of two shapes; the longer took ten times as long."""
    return [*sweep, *record(tmp_path_factory.mktemp("long"), LONG, 10.0)]


def answers(executor: ReplayExecutor, configs: Sequence[Config]) -> list[Outcome]:
    for config in configs:
        executor.submit(config)
    return [executor.collect() for _ in configs]


def recorded(trials: Sequence[Trial], stage: Stage) -> dict[Config, Outcome]:
    return {trial.config: trial.outcome for trial in trials if trial.stage is stage}


def test_screening_answers_what_was_recorded(sweep: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    executor.open(SMALL, SHAPE)
    assert {outcome.config: outcome for outcome in answers(executor, SPACE)} == recorded(sweep, Stage.SCREEN)
    assert answers(executor, [FAILING])[0].message == "planted: hang"


def test_a_race_answers_with_the_recorded_race(sweep: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    executor.open(SMALL, SHAPE)
    raced, screened = recorded(sweep, Stage.RACE), recorded(sweep, Stage.SCREEN)
    outsider = next(config for config in SPACE if config not in raced)
    race = executor.race(list(raced), seconds=1.0)
    assert race.outcomes == tuple(raced.values())
    assert race.baselines == (BaselineResult("sdpa_flash", timing(200.0)),)
    assert raced[default(SMALL)].timing == timing(median_us(default(SMALL)) + 1)
    mixed = executor.race([*raced, outsider], seconds=1.0)  # times of two measurements are not compared
    assert mixed.outcomes == (*(screened[config] for config in raced), screened[outsider])
    assert mixed.baselines == ()


def test_a_race_drops_what_was_submitted(sweep: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    executor.open(SMALL, SHAPE)
    executor.submit(SPACE[0])
    executor.race(SPACE[:1], seconds=1.0)
    assert answers(executor, [SPACE[1]])[0].config == SPACE[1]


def test_of_several_races_the_newest_answers(sweep: list[Trial]) -> None:
    newer = [
        replace(trial, race_id="z", outcome=replace(trial.outcome, timing=timing(50.0)), baseline="sdpa_cudnn")
        for trial in sweep
        if trial.stage is Stage.RACE
    ]
    executor = ReplayExecutor(NVIDIA_H200, [*newer, *sweep])
    executor.open(SMALL, SHAPE)
    race = executor.race([default(SMALL)], seconds=1.0)
    assert race.outcomes[0].timing == timing(50.0)
    assert race.fastest_baseline.name == "sdpa_cudnn"


def test_without_a_recorded_race_the_screening_answers(sweep: list[Trial]) -> None:
    screened = recorded(sweep, Stage.SCREEN)
    executor = ReplayExecutor(NVIDIA_H200, [trial for trial in sweep if trial.stage is Stage.SCREEN])
    executor.open(SMALL, SHAPE)
    race = executor.race(SPACE[:2], seconds=1.0)
    assert race.outcomes == tuple(screened[config] for config in SPACE[:2])
    assert race.fastest_baseline == BaselineResult("")


@pytest.mark.parametrize(("seq", "source"), [(1024, SHAPE), (1500, SHAPE), (5000, LONG), (32768, LONG)])
def test_the_nearest_recorded_shape_is_named_and_answers(sweeps: list[Trial], seq: int, source: AttentionShape) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweeps)
    shape = replace(SHAPE, seq_q=seq, seq_kv=seq)
    assert executor.nearest(SMALL, shape) == source
    if shape != source:
        with pytest.raises(MissingDependencyError, match="no sweep was recorded for"):
            executor.open(SMALL, shape)
    executor.open(SMALL, source)
    assert executor.toolchain.torch == str(source.seq_q)
    assert executor.policy == Policy()
    median = (10.0 if source == LONG else 1.0) * median_us(default(SMALL))
    assert answers(executor, [default(SMALL)])[0].timing == timing(median)


@pytest.mark.parametrize(
    "change", [{"dtype": "float16"}, {"head_dim": 128, "head_dim_v": 128}, {"causal": False}, {"window": 256}], ids=str
)
def test_another_family_is_refused_with_what_is_recorded(sweep: list[Trial], change: dict[str, object]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    shape = replace(SHAPE, **change)  # type: ignore[arg-type]
    with pytest.raises(MissingDependencyError, match="no recorded sweep resembles") as caught:
        executor.open(SMALL, shape)
    assert str(shape) in str(caught.value)
    assert str(SHAPE) in str(caught.value)


def test_another_operation_is_refused(sweep: list[Trial]) -> None:
    expected = "no sweep of another is recorded on NVIDIA H200: .* `autotune lookup --operation another` says what is"
    with pytest.raises(MissingDependencyError, match=expected):
        ReplayExecutor(NVIDIA_H200, sweep).open(replace(SMALL, name="another"), SHAPE)


def test_another_device_is_refused(sweep: list[Trial]) -> None:
    with pytest.raises(MissingDependencyError, match="no sweep was recorded on NVIDIA H200"):
        ReplayExecutor(replace(NVIDIA_H200, power_cap_watts=500), sweep)


def test_a_config_that_was_not_recorded_is_invalid(sweep: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, [trial for trial in sweep if trial.config != SPACE[0]])
    executor.open(SMALL, SHAPE)
    (outcome,) = answers(executor, [SPACE[0]])
    assert (outcome.status, outcome.message) == (Status.INVALID, f"not recorded for {SHAPE}")


def test_opening_another_problem_drops_what_was_submitted(sweep: list[Trial]) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    executor.open(SMALL, SHAPE)
    executor.submit(SPACE[0])
    executor.open(SMALL, SHAPE)
    assert answers(executor, [SPACE[1]])[0].config == SPACE[1]


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
        search(SMALL, shape, ReplayExecutor(NVIDIA_H200, sweeps), Store(tmp_path), limits=Limits()) for _ in range(2)
    )
    assert done.winner is not None
    assert done.winner.config == min(set(SPACE) - {FAILING}, key=median_us)
    assert done.winner.executor == "replay"
    assert done.statuses == {Status.OK: len(SPACE) - 1, Status.HANG: 1}
    assert (again.measured, again.winner) == (0, done.winner)


def test_the_toolchain_is_that_of_the_operation_that_was_opened() -> None:
    """Two operations that take one shape, recorded with two versions of torch."""
    ours = [replace(trial, shape=flex_sample.SMALL) for trial in sample.sweep(sample.shape(64))[:3]]
    executor = ReplayExecutor(NVIDIA_H200, [*ours, *flex_sample.sweep()])
    for operation, torch in ((FLEX, "2.11.0+cu130"), (FLASH, "2.13.0"), (FLEX, "2.11.0+cu130")):
        executor.open(operation, flex_sample.SMALL)
        assert executor.toolchain.torch == torch
