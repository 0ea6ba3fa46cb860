"""Guesses at a later problem's binaries: compiled when nothing waits, they give way, and are told to nobody."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError
from autotune.executor.compile_pool import CompilePool
from autotune.executor.interruption import Interruption
from autotune.executor.shared_server import SharedServer
from autotune.trial import Outcome, Status
from tests.executor.driving import replace_gpu, start_executor
from tests.executor.faulty import GATE, OPERATION, SHAPE, candidate
from tests.executor.processes import Processes

LATER = replace(SHAPE, seq_q=64, seq_kv=64)
PATIENCE_SECONDS = 60.0


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the compile of "killed_once" leaves ``gate.killed``, and "gate" waits for ``gate``."""
    monkeypatch.setenv(GATE, str(tmp_path / "gate"))
    return tmp_path


@pytest.fixture
def pool(processes: Processes, traces: Path) -> Iterator[CompilePool]:
    """One of a single compiler."""
    with closing(CompilePool(NVIDIA_H200, jobs=1, timeout=PATIENCE_SECONDS)) as pool:
        pool.open(OPERATION, SHAPE)
        yield pool


def receive(pool: CompilePool) -> Outcome:
    outcome = pool.receive(PATIENCE_SECONDS)
    assert outcome is not None
    return outcome


def await_compile_of_killed_once(processes: Processes, traces: Path) -> None:
    processes.wait_until(lambda _: (traces / "gate.killed").exists())


def test_guesses_are_compiled_and_whatever_becomes_of_them_is_told_to_nobody(
    pool: CompilePool, processes: Processes, traces: Path
) -> None:
    faults = ("raise", "exit", "segfault", "killed", "starved", "unwritable", "nothing", "huge")
    guesses = [candidate("unloadable"), *(candidate(compile=each) for each in faults)]
    pool.expect(OPERATION, LATER, [*guesses, candidate(compile="killed_once")])
    await_compile_of_killed_once(processes, traces)  # the last of them
    processes.wait_for(1)  # it is not tried again
    assert (pool.is_awaited, pool.spare_jobs, pool.has_message) == (False, 1, False)
    for each in (candidate(), candidate(compile="raise"), candidate(compile="killed_once")):
        pool.submit(each)
    assert [receive(pool).status for _ in range(3)] == [Status.OK, Status.COMPILE_ERROR, Status.OK]
    assert pool.receive(0.0) is None


def test_a_guess_gives_way_to_what_is_submitted_and_begins_anew(pool: CompilePool, processes: Processes) -> None:
    pool.expect(OPERATION, LATER, [candidate(compile="grandchild")])
    before = processes.wait_for(3)  # the server, the compiler, and what that started
    pool.submit(candidate())
    assert receive(pool).status is Status.OK
    after = processes.wait_for(3)
    assert len(after & before) == 1  # the server


def test_what_is_tried_again_is_alone_though_a_guess_was_running(processes: Processes, traces: Path) -> None:
    with closing(CompilePool(NVIDIA_H200, jobs=2, timeout=PATIENCE_SECONDS)) as pool:
        pool.open(OPERATION, SHAPE)
        pool.expect(OPERATION, LATER, [candidate(compile="grandchild")])
        processes.wait_for(3)
        pool.submit(candidate(compile="killed_once"))
        assert receive(pool).status is Status.OK
        assert (traces / "gate.killed").exists()


@pytest.mark.parametrize("every_output", [False, True])
def test_a_problem_that_is_opened_asks_for_what_it_begins_with_itself(
    pool: CompilePool, processes: Processes, traces: Path, every_output: bool
) -> None:
    pool.submit(candidate(compile="gate"))
    processes.wait_for(2)
    os.kill(pool._child.pid, signal.SIGSTOP)  # so that it reads all of this at once
    pool.expect(OPERATION, LATER, [candidate(compile="killed_once")], every_output=every_output)
    pool.open(OPERATION, LATER)
    pool.submit(candidate(compile="gate"))
    pool.expect(OPERATION, SHAPE, [candidate(compile="grandchild")])
    os.kill(pool._child.pid, signal.SIGCONT)
    (traces / "gate").touch()
    assert receive(pool).status is Status.OK
    processes.wait_for(3)  # the last guess is being compiled, and so the first one was if it ever is
    assert (traces / "gate.killed").exists() == every_output


def test_a_guess_that_gives_way_to_its_own_problem_does_not_begin_anew(pool: CompilePool, processes: Processes) -> None:
    pool.expect(OPERATION, LATER, [candidate(compile="grandchild")])
    processes.wait_for(3)
    pool.open(OPERATION, LATER)
    pool.submit(candidate())
    assert receive(pool).status is Status.OK
    processes.wait_for(1)  # the server


def test_guesses_for_the_race_of_a_problem_end_with_it(pool: CompilePool, processes: Processes, traces: Path) -> None:
    pool.submit(candidate(compile="gate"))
    processes.wait_for(2)
    os.kill(pool._child.pid, signal.SIGSTOP)  # so that it reads all of this at once
    pool.expect(OPERATION, LATER, [candidate(compile="killed_once")], every_output=True)
    pool.open(OPERATION, LATER)
    pool.open(OPERATION, SHAPE)
    pool.submit(candidate(compile="gate"))
    pool.expect(OPERATION, LATER, [candidate(compile="grandchild")])
    os.kill(pool._child.pid, signal.SIGCONT)
    (traces / "gate").touch()
    assert receive(pool).status is Status.OK
    processes.wait_for(3)  # the last guess is being compiled, and so the first one was if it ever is
    assert not (traces / "gate.killed").exists()


def test_stopping_leaves_guesses_and_closing_ends_them(pool: CompilePool, processes: Processes) -> None:
    pool.expect(OPERATION, LATER, [candidate(compile="grandchild")])
    before = processes.wait_for(3)
    pool.stop()
    pool.submit(candidate("unloadable"), every_output=True)  # answered without a compiler
    with pytest.raises(MissingDependencyError, match="NO_SUCH_KERNEL"):
        receive(pool)
    assert processes.living() == before
    pool.close()
    processes.wait_for(0)


def test_guesses_of_a_pool_that_is_closed_are_compiled_for_the_others(processes: Processes, traces: Path) -> None:
    with closing(Interruption()) as interruption:
        server = SharedServer(jobs=1, timeout=PATIENCE_SECONDS, interruption=interruption)
        with closing(server):
            first, second = (CompilePool(None, jobs=1, timeout=PATIENCE_SECONDS, server=server) for _ in range(2))
            for pool in (first, second):
                pool.use(NVIDIA_H200)
                pool.open(OPERATION, SHAPE)
            second.submit(candidate(compile="gate"))
            first.expect(OPERATION, LATER, [candidate(compile="killed_once")])
            first.close()
            assert second.spare_jobs == 0  # a guess takes none
            (traces / "gate").touch()
            assert receive(second).status is Status.OK
            await_compile_of_killed_once(processes, traces)
            second.close()


def test_an_executor_expects_what_compiles_ahead_alone(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_gpu(monkeypatch)
    sent: list[Any] = []
    monkeypatch.setattr(CompilePool, "expect", lambda pool, *given, **named: sent.append((*given, named)))
    with closing(start_executor()) as executor:
        executor.expect_problem(OPERATION, LATER, [candidate("in_place")])
        executor.expect_problem(OPERATION, LATER, [candidate("in_place"), candidate()], every_output=True)
    assert sent == [(OPERATION, LATER, [candidate()], {"every_output": True})]
