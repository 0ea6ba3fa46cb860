"""Compiles what the next problems will ask for into the compiler's cache, while the GPU measures another."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from autotune.device import Device
from autotune.executor.compile_pool import COMPILE_SECONDS, CompilePool, limit_jobs
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.trial import Candidate


class _Batch(NamedTuple):
    operation: Operation[Any]
    shape: Shape
    candidates: Sequence[Candidate]
    every_output: bool


class CompileAhead:
    """A pool beside the executor's, with two thirds as many compilers; verdicts are in the cache, and told to no one.

    Lengths are no part of a binary, so the shapes of one class find each other's. ``advance`` must be called now and
    then: it returns at once, and gives the pool the next problem when it is done with one.
    """

    def __init__(self, device: Device, *, jobs: int | None = None) -> None:
        count = max(1, 2 * limit_jobs(None).count // 3) if jobs is None else jobs
        self._pool = CompilePool(device, jobs=count, timeout=COMPILE_SECONDS)
        self._waiting: deque[_Batch] = deque()

    def want(self, operation: Operation[Any], shape: Shape, candidates: Sequence[Candidate]) -> None:
        """Queue the binaries of candidates for a shape, those for the first output before those for all of them."""
        if candidates:
            self._waiting += [_Batch(operation, shape, tuple(candidates), every) for every in (False, True)]
        self.advance()

    def advance(self) -> None:
        """Take what is finished, and begin the next problem if none is left in flight.

        Raises:
            MissingDependencyError: this machine cannot compile kernels.
        """
        while self._pool.in_flight and self._pool.receive(0.0) is not None:
            pass
        if self._waiting and not self._pool.in_flight:
            batch = self._waiting.popleft()
            self._pool.open(batch.operation, batch.shape)
            for candidate in batch.candidates:
                self._pool.submit(candidate, every_output=batch.every_output)

    def close(self) -> None:
        """End the compilers; safe to call twice."""
        self._waiting.clear()
        self._pool.close()
