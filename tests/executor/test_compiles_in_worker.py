"""An operation that does not compile ahead: its configs go straight to the worker, which has time to compile them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
from triton.runtime.errors import OutOfResources, PTXASError

from autotune import hardware
from autotune.executor import BaselineResult
from autotune.executor.compile_pool import CompilePool
from autotune.executor.gpu import GpuExecutor
from autotune.executor.problem import classify
from autotune.search import Limits, search
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Outcome, Resources, Status
from tests.executor.conftest import fake_gpu
from tests.executor.fake_worker import timing
from tests.executor.faulty import OPERATION, SHAPE, config
from tests.executor.processes import watch

IN_PLACE = replace(OPERATION, compiles_ahead=False)


@pytest.fixture(scope="module")
def shared() -> Iterator[GpuExecutor]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        fake_gpu(monkeypatch)
        watched = watch(monkeypatch)
        next(watched)
        executor = GpuExecutor(jobs=2, screen_seconds=0.4, compile_seconds=0.8)
        yield executor
        executor.close()
        next(watched, None)


@pytest.fixture
def executor(shared: GpuExecutor) -> GpuExecutor:
    shared.open(IN_PLACE, SHAPE)
    return shared


def answer(executor: GpuExecutor, wanted: Config) -> Outcome:
    executor.submit(wanted)
    outcome = executor.collect()
    assert outcome is not None
    return outcome


def test_no_compiler_sees_a_config(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the pool was asked")

    monkeypatch.setattr(CompilePool, "submit", refuse)
    wanted = config(compile="raise")
    assert answer(executor, wanted) == Outcome(
        config=wanted, status=Status.OK, timing=timing(wanted), resources=Resources(), compile_seconds=0.0
    )
    assert executor.race([wanted], seconds=0.1).baselines[0] == BaselineResult("sdpa_flash", timing(wanted))


def test_one_is_in_flight_since_the_worker_is_one(executor: GpuExecutor) -> None:
    assert executor.capacity == 1
    executor.open(OPERATION, SHAPE)
    assert executor.capacity == 3


def test_a_worker_is_left_the_time_of_a_compile_too(executor: GpuExecutor) -> None:
    outcome = answer(executor, config(run="hang"))
    assert (outcome.status, outcome.message) == (Status.HANG, "no answer within 1.2 s")
    assert answer(executor, config()).status is Status.OK
    race = executor.race(
        [config(run="race_slow"), config(run="race_hang")], seconds=0.1
    )  # 0.8 s: more than a screening
    assert [outcome.status for outcome in race.outcomes] == [Status.OK, Status.HANG]
    assert race.outcomes[1].message == "the race stood still for 1.2 s"
    executor.open(OPERATION, SHAPE)
    assert executor._patience == 0.4


def test_what_was_submitted_is_dropped_with_its_problem(executor: GpuExecutor) -> None:
    executor.submit(config())
    executor.open(IN_PLACE, SHAPE)
    assert executor.collect(0.1) is None


def test_a_search_ends_with_a_winner(executor: GpuExecutor, tmp_path: Any) -> None:
    space = replace(IN_PLACE.space, reject=lambda config, shape, device: None if config["run"] == "fine" else "no")
    result = search(
        replace(IN_PLACE, space=space), SHAPE, executor, Store(tmp_path), limits=Limits(4), sampler="random"
    )
    assert result.measured == 4
    assert result.winner is not None
    assert result.winner.outcome.resources == Resources()
    assert {trial.outcome.compile_seconds for trial in result.recorded} <= {0.0, None}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OutOfResources(262144, 232448, "shared memory"), Status.OUT_OF_RESOURCES),
        (triton.TritonError("torch refuses to compile it"), Status.COMPILE_ERROR),
        (PTXASError("no such instruction"), Status.COMPILE_ERROR),
        (torch.cuda.OutOfMemoryError("out of memory"), Status.OUT_OF_MEMORY),
        (RuntimeError("PassManager::run failed"), Status.COMPILE_ERROR),
        (RuntimeError("the launch failed"), Status.LAUNCH_ERROR),
    ],
)
def test_a_refusal_where_it_is_launched_has_its_status(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: Status
) -> None:
    monkeypatch.setattr(hardware, "is_context_alive", lambda: True)
    assert classify(error) is status
