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
states. ``open`` and ``race`` drop whatever is on its way.
"""

import contextlib
import math
import selectors
import socket
import sys
import time
import warnings
from collections import deque
from dataclasses import replace
from typing import Any, Final

from autotune import platforms
from autotune.device import Device
from autotune.errors import AutotuneError, MissingDependencyError
from autotune.executor import Baselines, Race, is_comparison
from autotune.executor.child import ChildDiedError
from autotune.executor.gpu_children import GpuChildren, start_children
from autotune.executor.messages import Screen, WorkingOn
from autotune.executor.recovery import SETUP_SECONDS, race_with_recovery
from autotune.executor.settings import Settings
from autotune.executor.worker_keeper import LOST
from autotune.operation import Operation
from autotune.registry import get_implementation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Status, Toolchain

DROP_SECONDS: Final = 1.0  # what is left to a screening whose outcome is dropped
# Parameters that reach a launch through the binary alone. Any other may change the grid or what the host does.
COMPILE_OPTIONS: Final = frozenset(
    ("num_warps", "num_stages", "num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
)
# The worker was lost, or the machine's memory ran out: what one candidate met, its twin need not meet.
NOT_SHARED: Final = (*LOST, Status.OUT_OF_MEMORY)
SHARED_GPU: Final = (
    "the GPU is shared with this process, which holds a CUDA context: times may be disturbed, and memory is short by "
    "what it holds; measure from a process that has not used the GPU"
)


class GpuExecutor:
    """Implements ``autotune.executor.Executor`` on a GPU; its children alone open it, so a caller need not.

    Args:
        settings: how the GPU is used.
        children: those that ``start_children`` has started with the same settings, if it was called ahead.

    Raises:
        MissingDependencyError: there is no GPU, or its worker ends before it has found the GPU. One that is found and
            cannot be opened is an error of the first ``collect`` or ``race``.
    """

    name = "gpu"

    def __init__(self, settings: Settings | None = None, children: GpuChildren | None = None) -> None:
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
        self._screening: Outcome | None = None
        self._screening_deadline = math.inf
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
        return f"{socket.gethostname()}:{self._workers.pid}"

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        """Turn to another problem, which the worker opens meanwhile: ``collect`` and ``race`` raise if it cannot."""
        self._drop()
        self._twins = Twins()
        self._operation = operation.name
        self._pool.open(operation, shape)
        self._workers.open(operation, shape)

    def submit(self, candidate: Candidate) -> None:
        if self._compiles_ahead(candidate):
            self._pool.submit(candidate)
        else:
            self._compiled.append(Outcome(candidate=candidate, status=Status.OK, compile_seconds=0.0))

    def collect(self, timeout: float | None = None) -> Outcome | None:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            is_worker_idle = self._screening is None and self._workers.is_ready(0.0)
            if is_worker_idle and self._compiled:
                compiled = self._compiled.popleft()
                if (twin := self._twins.find(compiled)) is not None:
                    return twin
                if not self._screen(compiled):
                    continue
            self._wait(deadline, is_worker_idle=is_worker_idle)
            if (outcome := self._next_screened() or self._next_compiled()) is not None:
                return outcome
            if time.monotonic() >= deadline:
                return None

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        """Measure these candidates and baselines round-robin; see ``race_with_recovery`` for seconds and errors."""
        self._drop()
        self._pool.stop()
        ends = time.monotonic() + seconds
        refused = self._compile_every_output(candidates)
        return race_with_recovery(
            self._workers,
            candidates,
            seconds=seconds if is_comparison(baselines) else max(0.0, ends - time.monotonic()),
            baselines=baselines,
            patience=self._patience,
            refused=refused,
        )

    def close(self) -> None:
        self._pool.close()
        self._workers.close()

    def _compile_every_output(self, candidates: list[Candidate]) -> list[Outcome]:
        """Compile the binaries that compute all outputs, in parallel; returns verdicts on those that this refuses."""
        for candidate in filter(self._compiles_ahead, candidates):
            self._pool.submit(candidate, every_output=True)
        found: list[Outcome] = []
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

    def _wait(self, deadline: float, *, is_worker_idle: bool) -> None:
        """Wait until a process that owes an answer speaks, or the first deadline passes.

        ``is_worker_idle`` is as of before a screening began: asking again here could swallow what is waited for.
        """
        if self._pool.has_message:
            return
        with selectors.DefaultSelector() as selector:
            if self._pool.in_flight:
                selector.register(self._pool, selectors.EVENT_READ)
                deadline = min(deadline, self._pool.deadline)
            if self._screening is not None or not is_worker_idle:
                selector.register(self._workers, selectors.EVENT_READ)
                until = self._workers.deadline if self._screening is None else self._screening_deadline
                deadline = min(deadline, until)
            selector.select(None if deadline == math.inf else max(0.0, deadline - time.monotonic()))

    def _screen(self, compiled: Outcome) -> bool:
        """Ask the worker for a verdict; False if it died meanwhile: it is asked again when it was replaced."""
        self._screening = compiled
        self._screening_deadline = time.monotonic() + self._patience(compiled.candidate)
        if self._workers.ask(Screen(compiled.candidate, self._settings.early_stop)):
            return True
        self._screening = None
        self._compiled.appendleft(compiled)
        return False

    def _next_screened(self, wait: float = 0.0) -> Outcome | None:
        """Return the outcome of the screening, if it ended or its time did."""
        compiled = self._screening
        if compiled is None:
            return None
        try:
            message = self._workers.receive(wait)
        except ChildDiedError as error:
            outcome = replace(compiled, status=Status.WORKER_DIED, message=str(error))
        except AutotuneError:
            self._screening = None
            raise
        else:
            patience = self._patience(compiled.candidate)
            if isinstance(message, WorkingOn):  # references of this implementation's cases, and then the candidate
                patience = SETUP_SECONDS if message.entrant is None else patience
                self._screening_deadline = time.monotonic() + patience
                return None
            if isinstance(message, Outcome):
                outcome = replace(message, resources=compiled.resources, compile_seconds=compiled.compile_seconds)
            elif time.monotonic() < self._screening_deadline:
                return None
            else:
                outcome = replace(compiled, status=Status.HANG, message=f"no answer within {patience:g} s")
        self._screening = None
        if outcome.status in LOST:
            self._workers.lose()
        self._twins.keep(outcome)
        return outcome

    def _next_compiled(self) -> Outcome | None:
        """Return a candidate that did not compile, if one is known; one that did waits for the worker."""
        outcome = self._pool.receive(0.0) if self._pool.in_flight else None
        if outcome is not None and outcome.status is Status.OK:
            self._reached.setdefault("first_compiled", time.monotonic())
            self._compiled.append(outcome)
            return None
        return outcome

    def _drop(self) -> None:
        """Forget what was submitted; a screening is left a moment to end, or it is ended with its worker."""
        self._compiled.clear()
        with contextlib.suppress(AutotuneError):  # met again by what comes next
            self._next_screened(DROP_SECONDS)
        if self._screening is not None:
            self._screening = None
            self._workers.lose()


class Twins:
    """Verdicts of one problem by what was launched: the binaries, and the parameters that are not in them."""

    def __init__(self) -> None:
        self._verdicts: dict[tuple[str, Candidate], Outcome] = {}

    def keep(self, outcome: Outcome) -> None:
        if outcome.resources.binary is not None and outcome.status not in NOT_SHARED:
            self._verdicts.setdefault(_launched(outcome), outcome)

    def find(self, compiled: Outcome) -> Outcome | None:
        """Return the verdict of a twin as that of a compiled candidate; one that is asked again is measured again."""
        twin = None if compiled.resources.binary is None else self._verdicts.get(_launched(compiled))
        if twin is None or twin.candidate == compiled.candidate:
            return None
        return replace(
            twin,
            candidate=compiled.candidate,
            message=": ".join(filter(None, (f"same binary as {twin.config}", twin.message))),
            resources=compiled.resources,
            compile_seconds=compiled.compile_seconds,
            judge_seconds=0.0,
        )


def _launched(outcome: Outcome) -> tuple[str, Candidate]:
    assert outcome.resources.binary is not None
    rest = {name: value for name, value in outcome.config.items() if name not in COMPILE_OPTIONS}
    return outcome.resources.binary, Candidate(outcome.implementation, Config(rest))
