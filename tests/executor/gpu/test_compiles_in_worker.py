"""An implementation that does not compile ahead: its configs go to the worker, which has time to compile them."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.executor import BaselineResult
from autotune.executor.compile_pool import CompilePool
from autotune.executor.gpu import GpuExecutor
from autotune.executor.settings import Settings
from autotune.search import Limits, search
from autotune.table import Store
from autotune.trial import Candidate, Outcome, Resources, Status
from tests.executor.driving import answer, collect
from tests.executor.fake_worker import conditions, timing
from tests.executor.faulty import IN_PLACE, OPERATION, SHAPE, candidate
from tests.executor.processes import Processes


@pytest.fixture(scope="module")
def shared_executor(shared_processes: Processes) -> Iterator[GpuExecutor]:
    """One with less patience than the worker needs for a race."""
    with closing(GpuExecutor(Settings(jobs=2, screen_seconds=0.4, compile_seconds=0.8))) as executor:
        yield executor


@pytest.fixture
def executor(shared_executor: GpuExecutor) -> GpuExecutor:
    shared_executor.open(OPERATION, SHAPE)
    return shared_executor


def in_place(**values: Any) -> Candidate:
    return candidate(IN_PLACE.name, **values)


def test_no_compiler_sees_a_config(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the pool was asked")

    monkeypatch.setattr(CompilePool, "submit", refuse)
    wanted = in_place(compile="raise")
    assert answer(executor, wanted) == Outcome(
        candidate=wanted,
        status=Status.OK,
        timing=timing(wanted.config),
        resources=Resources(),
        compile_seconds=0.0,
        conditions=conditions(),
    )
    assert executor.race([wanted], seconds=0.1).baselines[0] == BaselineResult("sdpa_flash", timing(wanted.config))


def test_a_problem_mixes_both_kinds(executor: GpuExecutor) -> None:
    wanted = [in_place(), candidate(), in_place(compile="raise"), candidate(compile="raise")]
    for each in wanted:
        executor.submit(each)
    found = {outcome.candidate: outcome.status for outcome in (collect(executor) for _ in wanted)}
    assert found == {**dict.fromkeys(wanted, Status.OK), wanted[3]: Status.COMPILE_ERROR}


@pytest.mark.slow
def test_a_worker_is_left_the_time_of_a_compile_too(executor: GpuExecutor) -> None:
    outcome = answer(executor, in_place(run="hang"))
    assert (outcome.status, outcome.message) == (Status.HANG, "no answer within 1.2 s")
    assert answer(executor, in_place()).status is Status.OK
    entrants = [in_place(run="race_slow"), in_place(run="race_hang")]  # slow: 0.8 s, more than a screening may take
    race = executor.race(entrants, seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK, Status.HANG]
    assert race.outcomes[1].message == "the race stood still for 1.2 s"
    assert executor._patience(candidate()) == 0.4


def test_what_was_submitted_is_dropped_with_its_problem(executor: GpuExecutor) -> None:
    executor.submit(in_place())
    executor.open(OPERATION, SHAPE)
    assert executor.collect(0.1) is None


def test_a_search_ends_with_a_winner(executor: GpuExecutor, tmp_path: Path) -> None:
    space = replace(IN_PLACE.space, reject=lambda config, shape, device: None if config["run"] == "fine" else "no")
    tuned = [replace(IN_PLACE, space=space)]
    result = search(
        OPERATION, SHAPE, executor, Store(tmp_path), limits=Limits(4), implementations=tuned, sampler="random"
    )
    assert result.measured == 4
    assert result.winner is not None
    assert result.winner.outcome.resources == Resources()
    assert {trial.outcome.compile_seconds for trial in result.recorded} <= {0.0, None}
