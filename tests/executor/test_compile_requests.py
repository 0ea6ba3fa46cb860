"""Requests of a compile pool and the answers that it takes for each, over a fake server; nothing compiles."""

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.executor import compile_pool, messages
from autotune.executor.compile_pool import CompilePool
from autotune.executor.shared_server import SharedServer
from autotune.trial import Candidate, Outcome, Resources, Status
from tests.executor.faulty import OPERATION, SHAPE, candidate

FIRST, SECOND, THIRD = candidate(), candidate(extra_us=1), candidate(extra_us=3)


class FakeServer:
    """Keeps what it is sent; answers once a test says so."""

    has_message = False

    def __init__(self) -> None:
        self.sent: list[messages.Message] = []
        self.answers: deque[dict[str, Any]] = deque()

    def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(messages.decode(message))

    def receive(self, timeout: float) -> dict[str, Any] | None:
        return self.answers.popleft() if self.answers else None

    def close(self) -> None:
        pass

    def answer(self, request: messages.Compile) -> None:
        """Answer a request by a binary that is named by its outputs."""
        binary = "every" if request.every_output else "first"
        outcome = Outcome(candidate=request.candidate, status=Status.OK, resources=Resources(binary=binary))
        self.answers.append(messages.encode(messages.Compiled(request.number, outcome, request.every_output)))

    @property
    def compiles(self) -> list[messages.Compile]:
        return [each for each in self.sent if isinstance(each, messages.Compile)]

    def kinds(self) -> list[str]:
        """Return the kinds of what it was sent since the last call."""
        kinds = [type(each).__name__ for each in self.sent]
        self.sent.clear()
        return kinds


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    server = FakeServer()
    monkeypatch.setattr(compile_pool, "start_server", lambda settings: server)
    return server


@pytest.fixture
def pool(server: FakeServer) -> CompilePool:
    pool = CompilePool(NVIDIA_H200, jobs=4, timeout=1.0)
    pool.open(OPERATION, SHAPE)
    server.sent.clear()
    return pool


def binary(outcome: Outcome | None) -> tuple[Candidate, str | None]:
    assert outcome is not None
    return outcome.candidate, outcome.resources.binary


def test_the_answer_to_a_preparation_is_not_that_to_a_screening(pool: CompilePool, server: FakeServer) -> None:
    pool.prepare(FIRST)
    pool.submit(FIRST)
    for request in server.compiles:
        server.answer(request)
    assert binary(pool.receive(0.0)) == (FIRST, "first")
    assert pool.receive(0.0) is None
    assert not pool.is_awaited


def test_what_is_prepared_of_finalists_goes_on_and_is_not_asked_for_again(
    pool: CompilePool, server: FakeServer
) -> None:
    for each in (FIRST, SECOND):
        pool.prepare(each)
    pool.submit(THIRD)
    first, second, third = server.compiles
    server.kinds()
    pool.stop_all_but([FIRST, THIRD])
    assert server.sent == [messages.KeepCompiling(first.number, (FIRST,))]
    for each in (FIRST, THIRD):
        pool.submit(each, every_output=True)
    assert server.compiles == [messages.Compile(first.number, THIRD, every_output=True)]  # the first is on its way
    for request in (second, third, first, *server.compiles):  # the first two were answered before they were dropped
        server.answer(request)
    assert [binary(pool.receive(0.0)) for _ in range(2)] == [(FIRST, "every"), (THIRD, "every")]
    assert pool.receive(0.0) is None
    assert not pool.is_awaited


def test_what_was_dropped_is_prepared_anew(pool: CompilePool, server: FakeServer) -> None:
    for each in (FIRST, SECOND):
        pool.prepare(each)
    pool.stop_all_but([FIRST])
    pool.prepare(SECOND)
    assert server.kinds() == ["Compile", "Compile", "KeepCompiling", "Compile"]
    pool.stop_all_but([THIRD])
    pool.prepare(FIRST)
    assert server.kinds() == ["StopCompiling", "OpenProblem", "Compile"]


def test_a_fault_of_what_is_prepared_makes_the_race_ask_anew(pool: CompilePool, server: FakeServer) -> None:
    pool.prepare(FIRST)
    server.answers.append(messages.encode(messages.MachineFault("no space left", server.compiles[0].number)))
    assert pool.receive(0.0) is None
    assert not pool.is_awaited
    pool.stop_all_but([FIRST])
    pool.submit(FIRST, every_output=True)
    assert server.kinds() == ["Compile", "StopCompiling", "OpenProblem", "Compile"]


class FakeSharedServer:
    """Gives each pool a fake server of its own, and counts for all as a ``SharedServer`` does."""

    heard_at = 0.0
    awaited = SharedServer.awaited

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.counts: list[Callable[[], int]] = []

    def connect(self) -> FakeServer:
        return FakeServer()


def test_a_pool_spares_the_compilers_that_other_pools_wait_for() -> None:
    shared: Any = FakeSharedServer()
    ours, others = (CompilePool(NVIDIA_H200, jobs=4, timeout=1.0, server=shared) for _ in range(2))
    for each in (ours, others):
        each.open(OPERATION, SHAPE)
    assert (ours.spare_jobs, others.spare_jobs) == (4, 4)
    others.submit(FIRST)
    others.prepare(SECOND)
    ours.submit(FIRST)
    assert (ours.spare_jobs, others.spare_jobs) == (1, 1)
    others.submit(THIRD)
    assert ours.spare_jobs == 0
    others.close()
    assert (ours.spare_jobs, others.is_awaited) == (3, False)
