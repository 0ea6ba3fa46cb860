"""The parent's side of the worker: one process that owns the GPU, and one on standby to take its place.

Importing torch and triton takes 3.2 s on an H200 host, opening the GPU 0.4 s: the standby has done the first already.
It is prepared once the first worker is asked, so that nothing shares the machine with a cold start and a first compile.

::

            promoted    Identified, Started         Opened
    lost ------------> starting --------> opening ----------> ready
     ^                    |               |  ^ |                |
     |  died or silent    |               |  | | died, silent   | died, hung, broke its context
     +--------------------+---------------|--|-+----------------+
                          another problem +--+------------------- another problem, from ready

A worker that dies while it starts, or while it opens a problem, is replaced ``MAX_STARTS`` or ``MAX_OPENINGS`` times;
then ``is_ready`` raises. ``Unopened`` leads to ``lost`` and raises at once.
"""

import contextlib
import json
import math
import time
from collections.abc import Iterator
from typing import Any, Final, Literal

from autotune.device import Device
from autotune.errors import AutotuneError, MissingDependencyError, SearchError, UnusableGpuError
from autotune.executor import messages
from autotune.executor.child import Child, ChildDiedError
from autotune.executor.interruption import Interruption
from autotune.executor.messages import decode, encode, refer_to_problem, to_plain
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.trial import Outcome, Policy, Status, Toolchain

START_SECONDS: Final = 120.0  # importing torch and opening the GPU on a loaded machine
OPEN_SECONDS: Final = 120.0  # references in fp64 and the inputs of a problem
MAX_STARTS: Final = 2  # by workers that died of it: a standby, and the next
MAX_OPENINGS: Final = 2  # of one problem by workers that died of it, or just before it
LOST: Final = (Status.WORKER_DIED, Status.HANG, Status.ILLEGAL_ACCESS)  # after these a worker is of no more use


class WorkerKeeper:
    """Keeps a worker that has the current problem open; replaces it when it is lost. The first one starts at once.

    Args:
        interruption: raises KeyboardInterrupt from what waits for a worker.
    """

    def __init__(self, policy: Policy, index: int, interruption: Interruption | None = None) -> None:
        self.index = index
        self._interruption = interruption
        self._busy_seconds, self._busy_since = 0.0, math.inf
        self._starved_seconds = 0.0
        self._settings = json.dumps({"policy": to_plain(policy), "index": index})
        self._problem: messages.ProblemReference | None = None
        self._number = 0  # of the problem: an answer to an earlier one is none
        self._openings = 0
        self._starts = 0  # since a worker last said who it is
        self._stage: Literal["lost", "starting", "opening", "ready"] = "lost"
        self._deadline = math.inf
        self.device: Device
        self.toolchain: Toolchain
        self.reached: dict[str, float] = {}  # ``time.monotonic()`` of the first worker's steps
        self._is_identified = False
        self._standby: Child | None = None
        self._start(self._prepare())

    @property
    def pid(self) -> int:
        """The process that owns the GPU, or that owned it last."""
        return self._worker.pid

    @property
    def is_interrupted(self) -> bool:
        """True once its ``interruption`` is set: nothing waits for a worker any more."""
        return self._interruption is not None and self._interruption.is_set

    def fileno(self) -> int:
        return self._worker.fileno()

    @property
    def deadline(self) -> float:
        """Until when a worker that is not ready may take to be; infinite for one that is."""
        return self._deadline

    @property
    def busy_seconds(self) -> float:
        """For how long workers have opened problems and answered requests, together."""
        return self._busy_seconds + max(0.0, time.monotonic() - self._busy_since)

    @property
    def starved_seconds(self) -> float:
        """For how long it was ready while everything that it could do was being compiled, together."""
        return self._starved_seconds

    @contextlib.contextmanager
    def starving(self) -> Iterator[None]:
        """Count the time of a block as starved, if it is ready when that begins."""
        began = time.monotonic() if self._stage == "ready" else math.inf
        try:
            yield
        finally:
            self._starved_seconds += max(0.0, time.monotonic() - began)

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        """Turn to another problem; returns at once: ``is_ready`` tells when it is open, or raises."""
        self._problem = refer_to_problem(operation, shape)
        self._number += 1
        self._openings = 0
        if self._stage in ("opening", "ready"):
            self._open()

    def identify(self) -> None:
        """Wait until ``device`` and ``toolchain`` are known, which is before the GPU is open.

        Raises:
            UnusableGpuError: the GPU cannot be opened.
        """
        while not self._is_identified:
            self._step(math.inf)

    def await_ready(self) -> None:
        """Wait until the worker can be asked; raises what ``is_ready`` does."""
        while not self.is_ready(math.inf):
            pass

    def is_ready(self, timeout: float) -> bool:
        """Return if the worker can be asked, after waiting at most that many seconds for it to start and to open."""
        until = time.monotonic() + timeout
        while self._stage != "ready":
            if not self._step(until):
                return False
        return True

    def ask(self, request: messages.Screen | messages.RunRace) -> bool:
        """Send a request to a ready worker; False if it is gone: one that died while idle did not die of this."""
        try:
            self._worker.send(encode(request))
        except ChildDiedError:
            self.lose()
            return False
        self._busy_since = time.monotonic()
        self._standby = self._standby or self._prepare()
        return True

    def receive(self, timeout: float) -> messages.FromWorker | None:
        """Return the next message of a worker that was asked, or None after that many seconds.

        Raises:
            ChildDiedError: it died instead.
            SearchError: it cannot make the inputs that the request needs.
            MissingDependencyError: this machine cannot compile or launch kernels.
        """
        data = self._worker.receive(timeout)
        if data is None:
            return None
        message: messages.FromWorker = decode(data)  # type: ignore[assignment] # of a worker
        if not isinstance(message, messages.WorkingOn):
            # An outcome may have lain there while the caller was at other things: its worker rested.
            self._rest(message.judge_seconds if isinstance(message, Outcome) else None)
        if isinstance(message, messages.Unopened):
            raise self._failure(message.reason)
        if isinstance(message, messages.MachineFault):
            raise MissingDependencyError(
                f"this machine cannot compile or launch kernels: {message.reason}; run `autotune doctor`"
            )
        return message

    def lose(self) -> None:
        """End a worker that is of no more use; the standby takes its place when one is needed."""
        self._worker.kill()
        self._rest()
        self._stage, self._deadline = "lost", math.inf

    def close(self) -> None:
        self._rest()
        if self._standby is not None:
            self._standby.kill()
        self._worker.close()

    def _step(self, until: float) -> bool:
        """Bring a worker that is not ready one message further, or replace it; False if it was silent until then."""
        if self._stage == "lost":
            self._promote()
        try:
            message = self._worker.receive(max(0.0, min(until, self._deadline) - time.monotonic()))
        except ChildDiedError as error:
            may_retry = self._starts < MAX_STARTS if self._stage == "starting" else self._openings < MAX_OPENINGS
            if not may_retry:
                raise self._failure(str(error)) from None
            self.lose()
            return True
        if message is not None:
            self._advance(decode(message))
            return True
        if time.monotonic() >= self._deadline:
            patience = START_SECONDS if self._stage == "starting" else OPEN_SECONDS
            raise self._failure(f"no answer within {patience:.0f} s")
        return False

    def _prepare(self) -> Child:
        child = Child("autotune.executor.worker", self._settings)
        child.interruption = self._interruption
        return child

    def _promote(self) -> None:
        """Make the standby the worker, and prepare another."""
        standby, self._standby = self._standby or self._prepare(), self._prepare()
        self._start(standby)

    def _start(self, worker: Child) -> None:
        """Make this the worker: it opens the GPU once it has imported what it needs."""
        self._worker = worker
        self._stage, self._deadline = "starting", time.monotonic() + START_SECONDS
        self._starts += 1
        try:
            self._worker.send(encode(messages.Start()))
        except ChildDiedError:  # while it waited
            self._worker.kill()
            self._worker = self._prepare()
            with contextlib.suppress(ChildDiedError):  # found by ``is_ready``
                self._worker.send(encode(messages.Start()))

    def _advance(self, message: Any) -> None:
        """Handle a message from a worker that is still starting or opening."""
        match message:
            case messages.Identified():
                self._note("gpu_identified")
                self.device, self.toolchain = message.device, message.toolchain
                self._is_identified = True
            case messages.Started():
                self._note("gpu_opened")
                self._starts = 0
                self._open()
            case messages.Unopened() if message.number == self._number:
                raise self._failure(message.reason)
            case messages.Opened() if message.number == self._number:
                self._note("problem_opened")
                self._rest()
                self._stage, self._deadline, self._openings = "ready", math.inf, 0

    def _rest(self, worked: float | None = None) -> None:
        """Count the worker as busy no more: until now, or for so many seconds where it said so."""
        taken = self.busy_seconds - self._busy_seconds
        self._busy_seconds += taken if worked is None else min(taken, worked)
        self._busy_since = math.inf

    def _note(self, step: str) -> None:
        self.reached.setdefault(step, time.monotonic())

    def _open(self) -> None:
        if self._problem is None:
            self._stage, self._deadline = "ready", math.inf
            return
        self._stage, self._deadline = "opening", time.monotonic() + OPEN_SECONDS
        self._openings += 1
        self._busy_since = min(self._busy_since, time.monotonic())
        with contextlib.suppress(ChildDiedError):  # found by ``is_ready``
            self._worker.send(encode(messages.OpenProblem(self._number, self._problem)))

    def _failure(self, reason: str) -> AutotuneError:
        """End a worker that did not come to be ready, so that the next request begins afresh; returns the error."""
        starting = self._stage == "starting"
        self._starts = 0
        self.lose()
        if starting or self._problem is None:
            return UnusableGpuError(f"the GPU cannot be opened: {reason}; run `autotune doctor`")
        name = self._problem.operation
        return SearchError(
            f"the inputs of {name} cannot be made on this GPU: {reason}; free its memory or choose a smaller shape"
        )
