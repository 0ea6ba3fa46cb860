"""Runs trials on one of this machine's GPUs: a pool of compilers and one killable worker process.

::

                     compiles ahead              OK, no twin, worker ready
    submit(candidate) ------------> compiling --------------> compiled ----------> screening ---> collect()
                |                       |                        ^                     |
                |                       | fails                  |                     +-- hung, died: the worker
                |                       +------> collect()       |                         is replaced
                +------------------------------------------------+
                     compiled by the worker that measures it

The pool compiles many candidates at once and the worker screens one at a time; ``WorkerKeeper`` draws the worker's own
states. Once it has answered it is asked about the next, before ``collect`` returns its outcome. ``open`` and ``race``
drop whatever is on its way. Workers of further GPUs of the same kind may be lent while it screens: they open the
problem and screen too, until the race, which is run on its own GPU.
"""

import contextlib
import math
import selectors
import socket
import sys
import time
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from autotune import platforms
from autotune.device import Device
from autotune.errors import AutotuneError, MissingDependencyError, UnusableGpuError
from autotune.executor import Baselines, DisturbedRaceError, Race, is_comparison
from autotune.executor.gpu_children import GpuChildren, start_children
from autotune.executor.gpu_health import GpuHealth
from autotune.executor.interruption import Interruption
from autotune.executor.recovery import race_with_recovery
from autotune.executor.screener import OWN_DROP_SECONDS, Screener
from autotune.executor.screeners import Screeners
from autotune.executor.settings import Settings
from autotune.executor.twins import Twins
from autotune.executor.worker_keeper import LOST
from autotune.operation import Operation
from autotune.registry import get_implementation
from autotune.shape import Shape
from autotune.trial import Candidate, Outcome, Status, Toolchain

SHARED_GPU: Final = (
    "the GPU is shared with this process, which holds a CUDA context: times may be disturbed, and memory is short by "
    "what it holds; measure from a process that has not used the GPU"
)


class GpuExecutor:
    """Implements ``autotune.executor.Executor`` on a GPU; its children alone open it, so a caller need not.

    Args:
        settings: how the GPU is used.
        children: those that ``start_children`` has started with the same settings, if it was called ahead.
        health: judges the GPU where others could do its work.
        interruption: that of the children, if they have one.

    Attributes:
        screeners: its own, and those of other executors that are lent to it.

    Raises:
        MissingDependencyError: there is no GPU, or its worker ends before it has found the GPU. One that is found and
            cannot be opened is an error of the first ``collect`` or ``race``.
    """

    name = "gpu"

    def __init__(
        self,
        settings: Settings | None = None,
        children: GpuChildren | None = None,
        *,
        health: GpuHealth | None = None,
        interruption: Interruption | None = None,
    ) -> None:
        self._settings = settings or Settings()
        if children is None:
            if not (platforms.has_driver() or platforms.has_gpu()):
                raise MissingDependencyError(platforms.NO_GPU)
            children = start_children(self._settings)
        self._workers, self._pool, self.jobs = children.workers, children.pool, children.jobs
        try:
            if not platforms.has_gpu():  # imports torch, as the children do meanwhile
                raise MissingDependencyError(platforms.NO_GPU)
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_initialized():
                warnings.warn(SHARED_GPU, RuntimeWarning, stacklevel=2)
            self._workers.identify()
            self._pool.use(self.device)
        except BaseException:
            children.close()
            raise
        self.policy = self._settings.policy
        self._operation = ""
        self._compiled: deque[Outcome] = deque()
        self._refused: Outcome | None = None  # one that did not compile, found beside another's outcome
        self.screeners = Screeners(Screener(self._workers, health))
        self._interruption = interruption
        self._measured = self._workers  # what measured the last outcome
        self._twins = Twins()
        self._reached: dict[str, float] = {}

    @property
    def reached(self) -> dict[str, float]:
        """Return ``time.monotonic()`` at each step of the start that was reached, in order."""
        return {**self._workers.reached, **self._reached}

    @property
    def device(self) -> Device:
        return self._workers.device

    @property
    def toolchain(self) -> Toolchain:
        return self._workers.toolchain

    def toolchain_of(self, implementation: str) -> Toolchain:
        return self.toolchain

    @property
    def capacity(self) -> int:
        """One more than there are compilers: the GPU is far faster than they."""
        return self.jobs.count + 1

    @property
    def worker(self) -> str:
        return f"{socket.gethostname()}:{self._measured.pid}"

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        """Turn to another problem, which the worker opens meanwhile: ``collect`` and ``race`` raise if it cannot."""
        self._drop()
        self._twins = Twins()
        self._operation = operation.name
        self._pool.open(operation, shape)
        self._workers.open(operation, shape)
        self.screeners.accept(operation, shape)

    def submit(self, candidate: Candidate) -> None:
        if self._compiles_ahead(candidate):
            self._pool.submit(candidate)
        else:
            self._compiled.append(Outcome(candidate=candidate, status=Status.OK, compile_seconds=0.0))

    def collect(self, timeout: float | None = None) -> Outcome | None:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        refused, self._refused = self._refused, None
        if refused is not None:
            return refused
        while True:
            self.screeners.welcome()
            idle = self._look()
            while idle and self._compiled:
                if (twin := self._twins.find(self._compiled[0])) is not None:
                    self._compiled.popleft()
                    return twin
                if not self._ask(idle.pop(0)):
                    break  # until it was replaced
            else:
                self._wait(deadline)
                if (outcome := self._next_screened() or self._next_compiled()) is not None:
                    return outcome
                if time.monotonic() >= deadline:
                    return None

    def _ask(self, screener: Screener) -> bool:
        """Ask an idle screener about the first that is compiled; False if its worker has died meanwhile."""
        compiled = self._compiled.popleft()
        patience = self._patience(compiled.candidate)
        if screener.ask(compiled, early_stop=self._settings.early_stop, patience=patience):
            return True
        self._compiled.appendleft(compiled)
        return False

    def _ask_ahead(self, screener: Screener) -> None:
        """Let a screener that has answered measure on, while the caller stores its outcome and proposes more."""
        if not self._compiled:
            self._refused = self._next_compiled()
        if self._compiled and self._twins.find(self._compiled[0]) is None:
            self._ask(screener)

    def expect_problem(
        self, operation: Operation[Any], shape: Shape, candidates: Sequence[Candidate], *, every_output: bool = False
    ) -> None:
        ahead = [each for each in candidates if get_implementation(operation.name, each.implementation).compiles_ahead]
        if ahead:
            self._pool.expect(operation, shape, ahead, every_output=every_output)

    def expect_race(self, candidates: Sequence[Candidate], *, is_near: bool) -> None:
        for candidate in filter(self._compiles_ahead, candidates):
            if is_near or self._pool.spare_jobs:
                self._pool.prepare(candidate)

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        """Measure these candidates and baselines round-robin; see ``race_with_recovery`` for seconds and errors."""
        ends = time.monotonic() + seconds
        self._drop()
        self._pool.stop_all_but(filter(self._compiles_ahead, candidates))
        refused = self._compile_every_output(candidates)
        self._measured = self._workers
        found = race_with_recovery(
            self._workers,
            candidates,
            seconds=seconds if is_comparison(baselines) else max(0.0, ends - time.monotonic()),
            baselines=baselines,
            patience=self._patience,
            refused=refused,
        )
        timed = [outcome.conditions for outcome in found.outcomes if outcome.timing is not None]
        if timed:  # one measurement: the worst of all that took part
            worst = max(timed, key=lambda each: (each.contended, len(each.throttle_reasons)))
            try:
                self.screeners.own.judge(worst)
            except UnusableGpuError as error:
                raise DisturbedRaceError(str(error), found) from None
        return found

    def close(self) -> None:
        self.screeners.give_back_lent()
        self._pool.close()
        self._workers.close()

    def _compile_every_output(self, candidates: list[Candidate]) -> list[Outcome]:
        """Compile the binaries that compute all outputs, in parallel; returns verdicts on those that this refuses."""
        for candidate in filter(self._compiles_ahead, candidates):
            self._pool.submit(candidate, every_output=True)
        found: list[Outcome] = []
        with self._workers.starving():
            while self._pool.in_flight:
                found += filter(None, [self._pool.receive(math.inf)])
        return [outcome for outcome in found if outcome.status is not Status.OK]

    def _compiles_ahead(self, candidate: Candidate) -> bool:
        """Return True if the pool compiles a candidate; the worker that measures it otherwise."""
        return get_implementation(self._operation, candidate.implementation).compiles_ahead

    def _patience(self, candidate: Candidate) -> float:
        """Return for how many seconds the worker may be silent over a candidate."""
        compile_seconds = 0.0 if self._compiles_ahead(candidate) else self._settings.compile_seconds
        return self._settings.screen_seconds + compile_seconds

    def _look(self) -> list[Screener]:
        """Return the screeners that can be asked; one that was lent and cannot come to be is given back."""
        for screener in self.screeners:
            try:
                screener.look()
            except AutotuneError as error:
                self._give_up(screener, error)
        return [screener for screener in self.screeners if screener.is_idle]

    def _wait(self, deadline: float) -> None:
        """Wait until a process that owes an answer speaks, or the first deadline passes."""
        if self._pool.has_message:
            return
        with selectors.DefaultSelector() as selector:
            if self._interruption is not None:
                selector.register(self._interruption, selectors.EVENT_READ)
            if self._pool.is_awaited:
                selector.register(self._pool, selectors.EVENT_READ)
                deadline = min(deadline, self._pool.deadline)
            for screener in self.screeners:
                if screener.is_awaited:
                    selector.register(screener.workers, selectors.EVENT_READ)
                    deadline = min(deadline, screener.deadline)
            with contextlib.ExitStack() as starved:
                for screener in self.screeners:
                    if self._pool.in_flight and not screener.is_awaited:
                        starved.enter_context(screener.workers.starving())
                selector.select(None if deadline == math.inf else max(0.0, deadline - time.monotonic()))
        if self._interruption is not None:
            self._interruption.check()

    def _next_screened(self) -> Outcome | None:
        """Return the outcome of a screening that ended, or whose time did."""
        for screener in self.screeners:
            try:
                outcome = screener.next()
            except AutotuneError as error:
                self._give_up(screener, error)
                continue
            if outcome is not None:
                self._measured = screener.workers
                self._twins.keep(outcome)
                if outcome.status not in LOST:
                    self._ask_ahead(screener)
                return outcome
        return None

    def _give_up(self, screener: Screener, error: AutotuneError) -> None:
        """Do without a screener that was lent: another screens what it had. Without the own one nothing goes on."""
        compiled = screener.take_back()
        if screener is self.screeners.own:
            raise error
        if compiled is not None:
            self._compiled.appendleft(compiled)
        self.screeners.give_back(screener, error)

    def _next_compiled(self) -> Outcome | None:
        """Return a candidate that did not compile, if one is known; one that did waits for the worker."""
        outcome = self._pool.receive(0.0) if self._pool.is_awaited else None
        if outcome is not None and outcome.status is Status.OK:
            self._reached.setdefault("first_compiled", time.monotonic())
            self._compiled.append(outcome)
            return None
        return outcome

    def _drop(self) -> None:
        """Forget what was submitted; screenings are left a moment to end, or they are ended with their worker."""
        began = time.monotonic()
        self.screeners.give_back_lent()
        self._compiled.clear()
        self._refused = None
        self.screeners.own.drop(began + OWN_DROP_SECONDS)
