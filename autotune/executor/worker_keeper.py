"""The parent's side of the worker: one process that owns the GPU, and one on standby to take its place.

Importing torch and triton takes 3.2 s on an H200 host, opening the GPU 0.4 s: the standby has done the first already.
"""

import contextlib
import json
import math
import time
from dataclasses import asdict
from typing import Any, Final, Literal

from autotune.device import Device
from autotune.errors import AutotuneError, MissingDependencyError, SearchError
from autotune.executor.child import Child, ChildDiedError
from autotune.executor.messages import problem_to_json
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.trial import Policy, Status, Toolchain

START_SECONDS: Final = 120.0  # importing torch and opening the GPU on a loaded machine
OPEN_SECONDS: Final = 120.0  # references in fp64 and the inputs of a problem
MAX_STARTS: Final = 2  # by workers that died of it: a standby, and the next
MAX_OPENINGS: Final = 2  # of one problem by workers that died of it, or just before it
LOST: Final = (Status.WORKER_DIED, Status.HANG, Status.ILLEGAL_ACCESS)  # after these a worker is of no more use


class WorkerKeeper:
    """Keeps a worker that has the current problem open; replaces it when it is lost.

    Raises:
        MissingDependencyError: the GPU cannot be opened.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = json.dumps(asdict(policy))
        self._problem: dict[str, Any] | None = None
        self._number = 0  # of the problem: an answer to an earlier one is none
        self._openings = 0
        self._starts = 0  # since a worker last said who it is
        self._stage: Literal["lost", "starting", "opening", "ready"] = "lost"
        self._deadline = math.inf
        self.device: Device
        self.toolchain: Toolchain
        self._worker = self._standby = self._prepare()
        try:
            self.await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process that owns the GPU, or that owned it last."""
        return self._worker.pid

    def fileno(self) -> int:
        """The descriptor to wait on for messages."""
        return self._worker.fileno()

    @property
    def deadline(self) -> float:
        """Until when a worker that is not ready may take to be; infinite for one that is."""
        return self._deadline

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        """Turn to another problem; returns at once, ``is_ready`` tells when and whether it is open."""
        self._problem = problem_to_json(operation, shape)
        self._number += 1
        self._openings = 0
        if self._stage in ("opening", "ready"):
            self._open()

    def await_ready(self) -> None:
        """Wait until the worker can be asked; raises what ``is_ready`` does."""
        while not self.is_ready(math.inf):
            pass

    def is_ready(self, timeout: float) -> bool:
        """Whether the worker can be asked, after waiting at most that many seconds for it to start and to open.

        Raises:
            MissingDependencyError: the GPU cannot be opened.
            SearchError: the problem cannot be opened on it.
        """
        until = time.monotonic() + timeout
        while self._stage != "ready":
            if self._stage == "lost":
                self._promote()
            try:
                message = self._worker.receive(max(0.0, min(until, self._deadline) - time.monotonic()))
            except ChildDiedError as error:
                tries, limit = (
                    (self._starts, MAX_STARTS) if self._stage == "starting" else (self._openings, MAX_OPENINGS)
                )
                if tries < limit:
                    self.lose()
                    continue
                raise self._failure(str(error)) from None
            if message is not None:
                self._take(message)
            elif time.monotonic() >= self._deadline:
                patience = START_SECONDS if self._stage == "starting" else OPEN_SECONDS
                raise self._failure(f"no answer within {patience:.0f} s")
            else:
                return False
        return True

    def ask(self, request: dict[str, Any]) -> bool:
        """Send a request to a ready worker; whether it was there: one that died while idle did not die of this."""
        try:
            self._worker.send(request)
        except ChildDiedError:
            self.lose()
            return False
        return True

    def receive(self, timeout: float) -> dict[str, Any] | None:
        """The next message of a worker that was asked, or None after that many seconds.

        Raises:
            ChildDiedError: it died instead.
            SearchError: it cannot make the inputs that the request needs.
        """
        message = self._worker.receive(timeout)
        if message is not None and "unopened" in message:
            raise self._failure(message["unopened"])
        return message

    def lose(self) -> None:
        """End a worker that is of no more use; the standby takes its place when one is needed."""
        self._worker.kill()
        self._stage, self._deadline = "lost", math.inf

    def close(self) -> None:
        """End the worker and the standby."""
        self._standby.kill()
        self._worker.close()

    def _prepare(self) -> Child:
        return Child("autotune.executor.worker", self._policy)

    def _promote(self) -> None:
        """Make the standby the worker, and prepare another."""
        self._worker, self._standby = self._standby, self._prepare()
        self._stage, self._deadline = "starting", time.monotonic() + START_SECONDS
        self._starts += 1
        try:
            self._worker.send({"do": "start"})
        except ChildDiedError:  # while it waited
            self._worker.kill()
            self._worker = self._prepare()
            with contextlib.suppress(ChildDiedError):  # found by ``is_ready``
                self._worker.send({"do": "start"})

    def _take(self, message: dict[str, Any]) -> None:
        """Hear what a worker says that is not ready."""
        if self._stage == "starting":
            self._starts = 0
            self.device, self.toolchain = Device(**message["device"]), Toolchain(**message["toolchain"])
            self._open()
        elif message["number"] == self._number:
            if "unopened" in message:
                raise self._failure(message["unopened"])
            self._stage, self._deadline, self._openings = "ready", math.inf, 0

    def _open(self) -> None:
        if self._problem is None:
            self._stage, self._deadline = "ready", math.inf
            return
        self._stage, self._deadline = "opening", time.monotonic() + OPEN_SECONDS
        self._openings += 1
        with contextlib.suppress(ChildDiedError):  # found by ``is_ready``
            self._worker.send({"do": "open", "number": self._number, "problem": self._problem})

    def _failure(self, reason: str) -> AutotuneError:
        """Why the worker did not come to be ready; it is ended, so that the next request begins afresh."""
        starting = self._stage == "starting"
        self._starts = 0
        self.lose()
        if starting or self._problem is None:
            return MissingDependencyError(f"the GPU cannot be opened: {reason}; run `autotune doctor`")
        name = self._problem["operation"]
        return SearchError(
            f"the inputs of {name} cannot be made on this GPU: {reason}; free its memory or choose a smaller shape"
        )
