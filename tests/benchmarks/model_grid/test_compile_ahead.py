"""The next problems' binaries are compiled while another is measured."""

from typing import Any

import pytest

from autotune.operation import Operation
from autotune.shape import Shape
from autotune.trial import Candidate, Outcome, Status
from benchmarks.model_grid import compile_ahead
from benchmarks.model_grid.compile_ahead import CompileAhead
from tests import sample
from tests.benchmarks.model_grid.fake_gpu import FLASH, GOOD, H100, cells


class Pool:
    """In place of a pool of compilers: what was asked of it, and as many answers as a test lets come."""

    def __init__(self, device: Any, *, jobs: int, timeout: float) -> None:
        self.jobs, self.in_flight, self.answers = jobs, 0, 0
        self.asked: list[tuple[Shape, bool]] = []

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        assert self.in_flight == 0, "a problem that is opened stops the compiles of the last one"
        self.shape = shape

    def submit(self, candidate: Candidate, *, every_output: bool = False) -> None:
        self.in_flight += 1
        self.asked.append((self.shape, every_output))

    def receive(self, timeout: float) -> Outcome | None:
        if not self.answers:
            return None
        self.answers -= 1
        self.in_flight -= 1
        return Outcome(candidate=sample.candidate(), status=Status.OK)

    def close(self) -> None:
        pass


def test_what_comes_next_is_compiled_ahead_problem_by_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_ahead, "CompilePool", Pool)
    ahead = CompileAhead(H100, jobs=2)
    pool: Any = ahead._pool
    first, second = (cell.shape for cell in cells(2))
    for shape in (first, second):
        ahead.want(FLASH, shape, [sample.candidate(GOOD), sample.candidate()])
    ahead.want(FLASH, second, [])
    assert pool.asked == [(first, False)] * 2
    pool.answers = 1
    ahead.advance()
    assert len(pool.asked) == 2
    for expected in (4, 6, 8, 8):
        pool.answers = pool.in_flight
        ahead.advance()
        assert len(pool.asked) == expected
    assert pool.asked[2:] == [(first, True)] * 2 + [(second, False)] * 2 + [(second, True)] * 2
    ahead.close()
