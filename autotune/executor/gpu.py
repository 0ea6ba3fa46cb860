"""Runs trials on this machine's GPU: a pool of compilers and one killable worker process."""

import contextlib
import math
import selectors
import socket
import time
from collections import deque
from dataclasses import replace
from typing import Any, Final

from autotune import hardware
from autotune.device import Device
from autotune.errors import MissingDependencyError
from autotune.executor import Baselines, Race
from autotune.executor.child import ChildDiedError
from autotune.executor.compile_pool import COMPILE_SECONDS, CompilePool, Jobs, limit_jobs
from autotune.executor.messages import outcome_from_json
from autotune.executor.racing import race
from autotune.executor.twins import Twins
from autotune.executor.worker_keeper import LOST, WorkerKeeper
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome, Policy, Status, Toolchain

SCREEN_SECONDS: Final = 20.0  # numbers and time of one config; the problem's inputs are there already
POOL_SECONDS: Final = 120.0  # for the compile server, importing torch and the kernel, beside what it compiles
DROP_SECONDS: Final = 1.0  # what is left to a screening that nobody waits for
MAX_POOL_DEATHS: Final = 3  # in a row, without one finished compile: then it dies of the machine or of the kernel


class GpuExecutor:
    """Implements ``autotune.executor.Executor`` on the current GPU; the parent itself holds no CUDA context.

    Args:
        policy: how times are taken.
        jobs: compilers to run at once; all cores but one by default, and never more than the free memory holds.
        early_stop: whether a config far behind the best so far is cut short (a sweep measures everything).
        screen_seconds: after which a worker that is silent over one config hangs.
        compile_seconds: after which a compiler is killed with what it started.

    Raises:
        MissingDependencyError: there is no GPU, or it cannot be opened.
    """

    name = "gpu"

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        jobs: int | None = None,
        early_stop: bool = True,
        screen_seconds: float = SCREEN_SECONDS,
        compile_seconds: float = COMPILE_SECONDS,
    ) -> None:
        if not hardware.has_gpu():
            raise MissingDependencyError(hardware.NO_GPU)
        self.policy = policy or Policy()
        self.jobs: Jobs = limit_jobs(jobs)
        self._early_stop = early_stop
        self._screen_seconds = screen_seconds
        self._compile_seconds = compile_seconds
        self._opened: tuple[Operation[Any], Shape] | None = None
        self._workers = WorkerKeeper(self.policy)
        self._pool = self._start_pool()
        self._pool_deaths = 0
        self._pool_deadline = math.inf
        self._compiling: dict[Config, None] = {}
        self._compiled: deque[Outcome] = deque()
        self._screening: Outcome | None = None
        self._screening_deadline = math.inf
        self._twins = Twins()

    @property
    def device(self) -> Device:
        return self._workers.device

    @property
    def toolchain(self) -> Toolchain:
        return self._workers.toolchain

    @property
    def capacity(self) -> int:
        """One more than there are compilers: the GPU is far faster than they. One where the worker compiles."""
        return self.jobs.count + 1 if self._compiles_ahead else 1

    @property
    def worker(self) -> str:
        return f"{socket.gethostname()}:{self._workers.pid}"

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        """Turn to another problem, which the worker opens meanwhile: ``collect`` and ``race`` raise if it cannot."""
        self._drop()
        self._twins = Twins()
        self._opened = (operation, shape)
        self._open_pool()
        self._workers.open(operation, shape)

    def submit(self, config: Config) -> None:
        if not self._compiles_ahead:
            self._compiled.append(Outcome(config=config, status=Status.OK, compile_seconds=0.0))
            return
        if not self._compiling:
            self._extend_pool_deadline()
        self._compiling[config] = None
        with contextlib.suppress(ChildDiedError):  # found by ``collect``
            self._pool.submit(config)

    def collect(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the next submitted config to end, in any order; None if none did in that many seconds.

        Raises:
            MissingDependencyError: the GPU or the compilers do not work.
            SearchError: the worker cannot make the problem's inputs.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            is_worker_idle = self._screening is None and self._workers.is_ready(0.0)
            if is_worker_idle and self._compiled:
                compiled = self._compiled.popleft()
                twin = self._twins.find(compiled)
                if twin is not None:
                    return twin
                if not self._screen(compiled):
                    continue
            self._wait(deadline, is_worker_idle=is_worker_idle)
            outcome = self._next_screened() or self._next_compiled()
            if outcome is not None:
                return outcome
            if time.monotonic() >= deadline:
                return None

    def race(self, configs: list[Config], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        """Measure these configs and baselines round-robin; ``racing.race`` says how long.

        Raises:
            MissingDependencyError: the GPU does not work.
            SearchError: the worker cannot make the problem's inputs, or the race failed while no finalist ran.
        """
        self._drop()
        with contextlib.suppress(ChildDiedError):  # found by the next ``collect``
            self._pool.stop()
        return race(
            self._workers,
            configs,
            seconds=seconds,
            baselines=baselines,
            patience=self._patience,
        )

    def close(self) -> None:
        self._pool.close()
        self._workers.close()

    @property
    def _compiles_ahead(self) -> bool:
        """Whether the open problem's configs are compiled by the pool, or by the worker that measures them."""
        return self._opened is None or self._opened[0].compiles_ahead

    @property
    def _patience(self) -> float:
        """For how many seconds the worker may be silent over one config."""
        return self._screen_seconds + (0.0 if self._compiles_ahead else self._compile_seconds)

    def _wait(self, deadline: float, *, is_worker_idle: bool) -> None:
        """Until a process that owes an answer speaks, or the first deadline passes.

        ``is_worker_idle`` is as of before a screening began: asking again here could swallow what is waited for.
        """
        if self._pool.has_message:
            return
        with selectors.DefaultSelector() as selector:
            if self._compiling:
                selector.register(self._pool, selectors.EVENT_READ)
                deadline = min(deadline, self._pool_deadline)
            if self._screening is not None:
                selector.register(self._workers, selectors.EVENT_READ)
                deadline = min(deadline, self._screening_deadline)
            elif not is_worker_idle:
                selector.register(self._workers, selectors.EVENT_READ)
                deadline = min(deadline, self._workers.deadline)
            selector.select(None if deadline == math.inf else max(0.0, deadline - time.monotonic()))

    def _screen(self, compiled: Outcome) -> bool:
        """Ask the worker for a verdict; False if it died meanwhile: it is asked again when it was replaced."""
        self._screening, self._screening_deadline = compiled, time.monotonic() + self._patience
        request = {"do": "screen", "configs": [dict(compiled.config)], "early_stop": self._early_stop}
        if self._workers.ask(request):
            return True
        self._screening = None
        self._compiled.appendleft(compiled)
        return False

    def _next_screened(self, wait: float = 0.0) -> Outcome | None:
        """The outcome of the screening, if it ended or its time did."""
        compiled = self._screening
        if compiled is None:
            return None
        try:
            message = self._workers.receive(wait)
        except ChildDiedError as error:
            outcome = replace(compiled, status=Status.WORKER_DIED, message=str(error))
        else:
            if message is not None:
                found = outcome_from_json(message["outcome"])
                outcome = replace(found, resources=compiled.resources, compile_seconds=compiled.compile_seconds)
            elif time.monotonic() < self._screening_deadline:
                return None
            else:
                reason = f"no answer within {self._patience:g} s"
                outcome = replace(compiled, status=Status.HANG, message=reason)
        self._screening = None
        if outcome.status in LOST:
            self._workers.lose()
        self._twins.keep(outcome)
        return outcome

    def _next_compiled(self) -> Outcome | None:
        """A config that did not compile, if one is known; one that did waits for the worker."""
        if not self._compiling:
            return None
        try:
            outcome = self._pool.receive(0.0)
        except ChildDiedError as error:  # the server, not one of its compilers
            self._restart_pool(str(error))
            return None
        if outcome is None:
            if time.monotonic() >= self._pool_deadline:
                self._restart_pool("they were silent for too long")
            return None
        self._compiling.pop(outcome.config, None)
        self._pool_deaths = 0
        self._extend_pool_deadline()
        if outcome.status is not Status.OK:
            return outcome
        self._compiled.append(outcome)
        return None

    def _drop(self) -> None:
        """Forget what was submitted; a screening is left a moment to end, or it is ended with its worker."""
        self._compiling.clear()
        self._compiled.clear()
        self._screening_deadline = -math.inf
        self._next_screened(DROP_SECONDS)

    def _extend_pool_deadline(self) -> None:
        """From here on the pool may be silent for as long as a config takes that is tried twice."""
        self._pool_deadline = time.monotonic() + POOL_SECONDS + 2 * self._compile_seconds

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
        self._extend_pool_deadline()
        with contextlib.suppress(ChildDiedError):  # found by ``collect``
            self._pool.open(*self._opened)
            for config in self._compiling:
                self._pool.submit(config)

    def _start_pool(self) -> CompilePool:
        return CompilePool(self.device, jobs=self.jobs.count, timeout=self._compile_seconds)
