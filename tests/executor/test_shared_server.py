"""One compile server for several pools: turns, answers to whoever asked, and a death that ends none of them."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError
from autotune.executor.compile_pool import CompilePool
from autotune.executor.interruption import Interruption
from autotune.executor.shared_server import SharedServer
from autotune.trial import Outcome, Status
from tests.executor.faulty import GATE, OPERATION, SHAPE, candidate
from tests.executor.processes import Processes

PATIENCE_SECONDS = 60.0


@pytest.fixture
def interruption() -> Iterator[Interruption]:
    with closing(Interruption()) as interruption:
        yield interruption


@pytest.fixture
def pools(
    processes: Processes, interruption: Interruption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[CompilePool, CompilePool]]:
    """Two pools with the same problem open, over one server that compiles one candidate at a time."""
    monkeypatch.setenv(GATE, str(tmp_path / "gate"))  # closed until touched
    with ExitStack() as opened:
        server = SharedServer(jobs=1, timeout=PATIENCE_SECONDS, interruption=interruption)
        opened.callback(server.close)
        found = []
        for _ in range(2):
            pool = CompilePool(None, jobs=1, timeout=PATIENCE_SECONDS, server=server)
            opened.callback(pool.close)
            pool.use(NVIDIA_H200)
            pool.open(OPERATION, SHAPE)
            found.append(pool)
        yield found[0], found[1]


def receive(pool: CompilePool) -> Outcome:
    outcome = pool.receive(PATIENCE_SECONDS)
    assert outcome is not None
    return outcome


def test_pools_take_turns_and_each_has_its_own_answers(
    pools: tuple[CompilePool, CompilePool], processes: Processes, tmp_path: Path
) -> None:
    first, second = pools
    many = [candidate(compile="gate"), candidate(compile="print"), candidate(compile="hang")]
    for each in many:
        first.submit(each)
    second.submit(candidate(compile="raise"))
    (tmp_path / "gate").touch()
    assert receive(second).candidate == candidate(compile="raise")  # before what the first asked for earlier has ended
    assert {receive(first).candidate for _ in range(2)} == set(many[:2])
    assert (first.in_flight, second.in_flight) == (1, 0)
    assert processes.wait_for(2)  # the server, and what hangs


def test_another_problem_of_one_pool_leaves_the_others_compiles(
    pools: tuple[CompilePool, CompilePool], tmp_path: Path
) -> None:
    first, second = pools
    first.submit(candidate(compile="hang"))
    second.submit(candidate())
    first.open(OPERATION, SHAPE)
    assert receive(second).status is Status.OK
    first.submit(candidate(compile="huge"))
    assert receive(first).candidate == candidate(compile="huge")


@pytest.mark.slow
def test_a_failure_that_is_probed_for_a_pool_that_has_left_is_probed_for_the_other(
    pools: tuple[CompilePool, CompilePool], tmp_path: Path
) -> None:
    first, second = pools
    first.submit(candidate(compile="raise"))
    second.submit(candidate(compile="nothing"))
    first.stop()
    assert receive(second).status is Status.COMPILE_ERROR


@pytest.mark.slow
def test_a_kernel_that_cannot_be_imported_is_told_to_its_pool_alone(pools: tuple[CompilePool, CompilePool]) -> None:
    first, second = pools
    first.submit(candidate("unloadable"))
    second.submit(candidate())
    with pytest.raises(MissingDependencyError, match="NO_SUCH_KERNEL"):
        first.receive(PATIENCE_SECONDS)
    assert receive(second).status is Status.OK


def test_a_server_that_was_killed_is_replaced_once_for_all(
    pools: tuple[CompilePool, CompilePool], tmp_path: Path
) -> None:
    first, second = pools
    first.submit(candidate(compile="gate"))
    second.submit(candidate(compile="print"))
    os.kill(first._child.pid, signal.SIGKILL)
    (tmp_path / "gate").touch()
    assert receive(first).candidate == candidate(compile="gate")
    assert receive(second).candidate == candidate(compile="print")
    assert first._child.pid == second._child.pid


@pytest.mark.slow
def test_a_server_that_died_while_idle_is_replaced_by_the_next_candidate(
    pools: tuple[CompilePool, CompilePool],
) -> None:
    first, _ = pools
    first.submit(candidate())
    assert receive(first).status is Status.OK
    os.kill(first._child.pid, signal.SIGKILL)
    assert first.receive(0.5) is None
    first.submit(candidate(compile="print"))
    assert receive(first).status is Status.OK


def test_what_waits_is_interrupted(pools: tuple[CompilePool, CompilePool], interruption: Interruption) -> None:
    first, _ = pools
    first.submit(candidate(compile="hang"))
    interruption.set()
    with pytest.raises(KeyboardInterrupt):
        first.receive(PATIENCE_SECONDS)
