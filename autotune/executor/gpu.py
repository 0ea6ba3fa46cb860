"""Runs trials on this machine's GPU: a pool of compilers and one killable worker process."""

import contextlib
import json
import os
import selectors
import socket
import time
from collections import deque
from dataclasses import asdict, replace
from typing import Any, Final

from autotune import hardware
from autotune.device import Device
from autotune.errors import MissingDependencyError
from autotune.executor import Race
from autotune.executor.child import Child, ChildDiedError
from autotune.executor.compile_pool import COMPILE_SECONDS, CompilePool
from autotune.executor.messages import outcome_from_json, problem_to_json, race_from_json
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome, Policy, Status, Toolchain

START_SECONDS: Final = 120.0  # importing torch and opening the GPU on a loaded machine
SCREEN_SECONDS: Final = 60.0  # the first screening of a problem also computes its references
RACE_MARGIN_SECONDS: Final = 60.0
MAX_POOL_DEATHS: Final = 3  # in a row, without one finished compile: then it dies of the machine or of the kernel
LOST: Final = (Status.WORKER_DIED, Status.HANG, Status.ILLEGAL_ACCESS)  # the worker is of no more use


class GpuExecutor:
    """Implements ``autotune.executor.Executor`` on the current GPU; the parent itself holds no CUDA context.

    Args:
        policy: how times are taken.
        jobs: compilers to run at once; all cores but one by default.
        early_stop: whether a config far behind the best so far is cut short (a sweep measures everything).

    Raises:
        MissingDependencyError: there is no GPU, or it cannot be opened.
    """

    name = "gpu"

    def __init__(self, *, policy: Policy | None = None, jobs: int | None = None, early_stop: bool = True) -> None:
        if not hardware.has_gpu():
            raise MissingDependencyError(hardware.NO_GPU)
        self.policy = policy or Policy()
        self._early_stop = early_stop
        self._opened: tuple[Operation[Any], Shape] | None = None
        self.device, self.toolchain = self._start_worker()
        self._jobs = jobs or max(1, (os.cpu_count() or 2) - 1)
        self._pool = self._start_pool()
        self._pool_deaths = 0
        self._compiling: dict[Config, None] = {}
        self._compiled: deque[Outcome] = deque()
        self._screening: Outcome | None = None
        self._screening_deadline = 0.0

    @property
    def capacity(self) -> int:
        """Enough to keep every compiler busy while the GPU measures what they finished."""
        return 2 * self._jobs

    @property
    def worker(self) -> str:
        return f"{socket.gethostname()}:{self._worker.pid}"

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        self._wait_for_screening()
        self._compiling.clear()
        self._compiled.clear()
        self._opened = (operation, shape)
        self._open_pool()
        self._open_worker()

    def submit(self, config: Config) -> None:
        self._compiling[config] = None
        with contextlib.suppress(ChildDiedError):  # found by ``collect``
            self._pool.submit(config)

    def collect(self) -> Outcome:
        while True:
            if self._screening is None and self._compiled:
                self._screen(self._compiled.popleft())
            ready = self._wait()
            if self._pool in ready:
                outcome = self._receive_compiled()
                if outcome is not None and outcome.status is not Status.OK:
                    return outcome
                if outcome is not None:
                    self._compiled.append(outcome)
            if self._screening is not None and (self._worker in ready or not ready):
                return self._finish_screening()
            if not ready:
                self._restart_pool(f"nothing compiled for {COMPILE_SECONDS + START_SECONDS:.0f} s")

    def race(self, configs: list[Config], *, seconds: float, every_baseline: bool = False) -> Race:
        self._wait_for_screening()
        plain = [dict(config) for config in configs]
        try:
            self._ask({"do": "race", "configs": plain, "seconds": seconds, "every_baseline": every_baseline})
            message = self._worker.receive(seconds + RACE_MARGIN_SECONDS)
        except KeyboardInterrupt:
            self._worker.kill()  # it would answer what nobody waits for any more
            raise
        except ChildDiedError as error:
            status, reason = Status.WORKER_DIED, str(error)
        else:
            if message is None:
                status, reason = Status.HANG, f"the race did not end within {seconds + RACE_MARGIN_SECONDS:.0f} s"
            elif "race" in message:
                return race_from_json(message["race"])
            else:
                outcome = outcome_from_json(message["outcome"])
                status, reason = outcome.status, outcome.message
        if status in LOST:
            self._worker.kill()
        return _void(configs, status, reason)

    def close(self) -> None:
        self._pool.close()
        self._worker.close()

    def _screen(self, compiled: Outcome) -> None:
        self._screening = compiled
        self._ask({"do": "screen", "configs": [dict(compiled.config)], "early_stop": self._early_stop})
        self._screening_deadline = time.monotonic() + SCREEN_SECONDS

    def _wait(self) -> list[CompilePool | Child]:
        """Who has something to say; nobody means that the screening ran out of time."""
        if self._pool.has_message:
            return [self._pool]
        if self._screening is None:
            timeout = COMPILE_SECONDS + START_SECONDS
        else:
            timeout = max(0.0, self._screening_deadline - time.monotonic())
        with selectors.DefaultSelector() as selector:
            if self._compiling:
                selector.register(self._pool, selectors.EVENT_READ)
            if self._screening is not None:
                selector.register(self._worker, selectors.EVENT_READ)
            return [key.fileobj for key, _ in selector.select(timeout)]  # type: ignore[misc]

    def _receive_compiled(self) -> Outcome | None:
        try:
            outcome = self._pool.receive(0.0)
        except ChildDiedError as error:  # the server, not one of its compilers
            self._restart_pool(str(error))
            return None
        if outcome is not None:
            self._compiling.pop(outcome.config, None)
            self._pool_deaths = 0
        return outcome

    def _restart_pool(self, reason: str) -> None:
        """Start the compile server again with what it had; give up when that helps nothing."""
        self._pool_deaths += 1
        if self._pool_deaths > MAX_POOL_DEATHS:
            raise MissingDependencyError(f"the compilers do not work: {reason}; run `autotune doctor`")
        self._pool.close()
        self._pool = self._start_pool()
        self._open_pool()

    def _open_pool(self) -> None:
        assert self._opened is not None
        with contextlib.suppress(ChildDiedError):  # found by ``collect``
            self._pool.open(*self._opened)
            for config in self._compiling:
                self._pool.submit(config)

    def _finish_screening(self) -> Outcome:
        compiled = self._screening
        assert compiled is not None
        try:
            message = self._worker.receive(max(0.0, self._screening_deadline - time.monotonic()))
        except ChildDiedError as error:
            outcome = replace(compiled, status=Status.WORKER_DIED, message=str(error))
        else:
            if message is None:
                outcome = replace(compiled, status=Status.HANG, message=f"no answer within {SCREEN_SECONDS:.0f} s")
            else:
                found = outcome_from_json(message["outcome"])
                outcome = replace(found, resources=compiled.resources, compile_seconds=compiled.compile_seconds)
        self._screening = None
        if outcome.status in LOST:
            self._worker.kill()
        return outcome

    def _wait_for_screening(self) -> None:
        """Let a screening that nobody collected end before the worker is asked for something else."""
        if self._screening is not None:
            self._finish_screening()

    def _ask(self, request: dict[str, Any]) -> None:
        """Send to the worker; one that is gone is replaced first, since it did not die of this request.

        Replacing waits until then, so that the outcome that cost the last worker is recorded even if the GPU is lost.
        """
        try:
            self._worker.send(request)
        except ChildDiedError:
            self._worker.kill()
            self._start_worker()
            self._open_worker()
            with contextlib.suppress(ChildDiedError):  # found by who waits for the answer
                self._worker.send(request)

    def _start_worker(self) -> tuple[Device, Toolchain]:
        """Start the process that owns the GPU, and hear what it found."""
        self._worker = Child("autotune.executor.worker", json.dumps(asdict(self.policy)))
        with contextlib.ExitStack() as undo:
            undo.callback(self._worker.kill)
            try:
                hello = self._worker.receive(START_SECONDS)
            except ChildDiedError as error:
                raise MissingDependencyError(f"the GPU cannot be opened: {error}; run `autotune doctor`") from None
            if hello is None:
                reason = f"the GPU did not open within {START_SECONDS:.0f} s"
                raise MissingDependencyError(f"{reason}; run `autotune doctor`")
            undo.pop_all()
        return Device(**hello["device"]), Toolchain(**hello["toolchain"])

    def _open_worker(self) -> None:
        assert self._opened is not None
        with contextlib.suppress(ChildDiedError):  # replaced by ``_ask``
            self._worker.send({"do": "open", "problem": problem_to_json(*self._opened)})

    def _start_pool(self) -> CompilePool:
        return CompilePool(self.device, jobs=self._jobs, timeout=COMPILE_SECONDS)


def _void(configs: list[Config], status: Status, message: str) -> Race:
    """A race that gave no time: each finalist carries the reason."""
    return Race(tuple(Outcome(config=config, status=status, message=message) for config in configs))
