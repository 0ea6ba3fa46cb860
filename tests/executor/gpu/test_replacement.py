"""A worker or a compile server that dies or falls silent is replaced, and its successor goes on with the problem."""

import os
import signal
import time

import pytest

from autotune.executor.gpu import GpuExecutor
from autotune.trial import Status
from tests.executor.driving import answer, assert_works, collect
from tests.executor.faulty import OPERATION, SHAPE, candidate
from tests.executor.processes import Processes


def standby_of(executor: GpuExecutor) -> int:
    standby = executor._workers._standby
    assert standby is not None
    return standby.pid


def test_a_worker_that_died_while_idle_is_no_candidates_fault(executor: GpuExecutor) -> None:
    def die_idle() -> None:
        assert answer(executor, candidate(run="die_idle")).status is Status.OK
        os.waitid(os.P_PID, executor._workers.pid, os.WEXITED | os.WNOWAIT)

    die_idle()
    assert_works(executor)
    die_idle()
    assert executor.race([candidate()], seconds=0.1).outcomes[0].status is Status.OK
    die_idle()
    executor.open(OPERATION, SHAPE)
    assert_works(executor)


def test_a_standby_takes_over_and_another_stands_by(executor: GpuExecutor, shared_processes: Processes) -> None:
    assert_works(executor)
    standby = standby_of(executor)
    assert answer(executor, candidate(run="die")).status is Status.WORKER_DIED
    assert_works(executor)
    assert executor._workers.pid == standby
    assert {standby, standby_of(executor)} <= shared_processes.living()
    assert standby_of(executor) != standby


def test_a_standby_that_died_is_replaced_by_a_fresh_start(executor: GpuExecutor) -> None:
    assert_works(executor)
    standby = standby_of(executor)
    os.kill(standby, signal.SIGKILL)
    os.waitid(os.P_PID, standby, os.WEXITED | os.WNOWAIT)
    assert answer(executor, candidate(run="die")).status is Status.WORKER_DIED
    assert_works(executor)
    assert executor._workers.pid != standby


@pytest.mark.slow
def test_a_dead_compile_server_is_replaced_with_what_it_had(executor: GpuExecutor) -> None:
    for when in ("before open", "before submit", "while compiling"):
        if when == "before open":
            os.kill(executor._pool._child.pid, signal.SIGKILL)
        executor.open(OPERATION, SHAPE)
        if when == "before submit":
            os.kill(executor._pool._child.pid, signal.SIGKILL)
        executor.submit(candidate())
        executor.submit(candidate(compile="huge"))
        if when == "while compiling":
            os.kill(executor._pool._child.pid, signal.SIGKILL)
        found = {outcome.candidate: outcome.status for outcome in (collect(executor), collect(executor))}
        assert found == {candidate(): Status.OK, candidate(compile="huge"): Status.OUT_OF_RESOURCES}


@pytest.mark.slow
def test_a_silent_compile_server_is_replaced(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_works(executor)
    os.kill(executor._pool._child.pid, signal.SIGSTOP)
    executor.submit(candidate(compile="huge"))
    silent = executor._pool._child.pid
    monkeypatch.setattr(executor._pool, "_deadline", time.monotonic() + 0.2)
    assert collect(executor).status is Status.OUT_OF_RESOURCES
    assert executor._pool._child.pid != silent
