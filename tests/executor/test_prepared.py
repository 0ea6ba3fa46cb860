"""What is prepared of the next problem is compiled once, found where it is submitted, and lost with no harm."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.executor import messages
from autotune.executor.compile_pool import CompilePool
from autotune.executor.gpu import GpuExecutor
from autotune.executor.settings import Settings
from autotune.trial import Candidate, Outcome, Status
from tests.executor.driving import replace_gpu
from tests.executor.faulty import GATE, OPERATION, SHAPE, candidate
from tests.executor.processes import Processes

NEXT = replace(SHAPE, seq_q=64, seq_kv=64)
PATIENCE_SECONDS = 60.0


class NotingPool(CompilePool):
    """Notes what is asked of the server."""

    def __init__(self) -> None:
        self.asked: list[messages.Message] = []
        super().__init__(NVIDIA_H200, jobs=2, timeout=PATIENCE_SECONDS)

    def _send(self, message: messages.Message) -> None:
        self.asked.append(message)
        super()._send(message)

    @property
    def compiles(self) -> list[Candidate]:
        return [each.candidate for each in self.asked if isinstance(each, messages.Compile)]


@pytest.fixture
def pool(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotingPool]:
    monkeypatch.setenv(GATE, str(tmp_path / "gate"))  # closed until touched
    pool = NotingPool()
    pool.open(OPERATION, SHAPE)
    yield pool
    pool.close()


def receive(pool: CompilePool) -> Outcome:
    outcome = pool.receive(PATIENCE_SECONDS)
    assert outcome is not None
    return outcome


def test_a_prepared_candidate_is_compiled_once_and_found(pool: NotingPool, processes: Processes) -> None:
    fine, failing = candidate(), candidate(compile="raise")
    pool.prepare(OPERATION, NEXT, [fine, failing])
    pool.submit(candidate(compile="huge"))
    assert receive(pool).candidate == candidate(compile="huge")  # of the open problem alone
    while None in ((pool._next and pool._next.outcomes) or {}).values():
        assert pool.receive(0.1) is None
    pool.open(OPERATION, NEXT)
    for each in (failing, fine, candidate(compile="print")):
        pool.submit(each)
    assert pool.has_message
    assert pool.in_flight == 3
    found = {outcome.candidate: outcome.status for outcome in (receive(pool) for _ in range(3))}
    assert found == {fine: Status.OK, failing: Status.COMPILE_ERROR, candidate(compile="print"): Status.OK}
    assert pool.compiles.count(fine) == pool.compiles.count(failing) == 1
    assert pool.in_flight == 0
    assert pool.receive(0.0) is None


def test_one_on_its_way_is_waited_for(pool: NotingPool, tmp_path: Path) -> None:
    pool.prepare(OPERATION, NEXT, [candidate(compile="gate")])
    pool.open(OPERATION, NEXT)
    pool.submit(candidate(compile="gate"))
    assert pool.receive(0.3) is None
    (tmp_path / "gate").touch()
    assert receive(pool).status is Status.OK
    assert len(pool.compiles) == 1


def test_one_that_ends_before_it_is_submitted_is_kept(pool: NotingPool, tmp_path: Path) -> None:
    pool.prepare(OPERATION, NEXT, [candidate(compile="gate")])
    pool.open(OPERATION, NEXT)
    (tmp_path / "gate").touch()
    while None in pool._prepared.values():
        assert pool.receive(0.1) is None
    pool.submit(candidate(compile="gate"))
    assert receive(pool).status is Status.OK
    assert len(pool.compiles) == 1


def test_binaries_of_every_output_are_others(pool: NotingPool) -> None:
    pool.prepare(OPERATION, NEXT, [candidate(compile="huge_for_all")])
    pool.open(OPERATION, NEXT)
    pool.stop()
    pool.submit(candidate(compile="huge_for_all"), every_output=True)
    assert receive(pool).status is Status.OUT_OF_RESOURCES
    assert len(pool.compiles) == 2


def test_another_problem_than_the_prepared_one_ends_its_compiles(pool: NotingPool, processes: Processes) -> None:
    pool.prepare(OPERATION, NEXT, [candidate(compile="hang")])
    processes.wait_for(2)
    pool.open(OPERATION, replace(SHAPE, seq_q=96, seq_kv=96))
    processes.wait_for(1)
    pool.submit(candidate())
    assert receive(pool).status is Status.OK


@pytest.mark.parametrize("opened_first", [True, False])
def test_what_was_prepared_ends_with_its_server_and_is_compiled_again(pool: NotingPool, opened_first: bool) -> None:
    pool.prepare(OPERATION, NEXT, [candidate()])
    if opened_first:
        pool.open(OPERATION, NEXT)
    os.kill(pool._child.pid, signal.SIGKILL)
    pool.open(OPERATION, NEXT)
    pool.submit(candidate())
    assert receive(pool).status is Status.OK


def test_a_kernel_that_cannot_be_imported_is_met_by_its_own_search(pool: NotingPool) -> None:
    pool.prepare(OPERATION, NEXT, [candidate("unloadable")])
    pool.submit(candidate())
    assert receive(pool).status is Status.OK


def test_a_race_prepares_what_comes_after_it(monkeypatch: pytest.MonkeyPatch, processes: Processes) -> None:
    replace_gpu(monkeypatch)
    asked: list[Any] = []

    def find_next() -> Any:
        asked.append(executor._pool.in_flight)
        return OPERATION, NEXT, [candidate(), candidate("in_place")]

    executor = GpuExecutor(Settings(jobs=2))
    try:
        executor.open(OPERATION, SHAPE)
        executor.expect(find_next)
        for _ in range(2):
            race = executor.race([candidate(compile="print")], seconds=0.1)
            assert race.outcomes[0].status is Status.OK
        assert asked == [1]  # once, behind the race's own
        executor.open(OPERATION, NEXT)
        assert list(executor._pool._prepared) == [candidate()]  # the worker compiles the other
        executor.submit(candidate())
        outcome = executor.collect()
        assert outcome is not None
        assert outcome.status is Status.OK
    finally:
        executor.close()
