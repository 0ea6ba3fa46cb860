"""A worker at its screenings: asked about one compiled candidate at a time, and waited for as long as it may take."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from autotune.errors import AutotuneError, UnusableGpuError
from autotune.executor.child import ChildDiedError
from autotune.executor.gpu_health import GpuHealth
from autotune.executor.messages import Screen, WorkingOn
from autotune.executor.recovery import SETUP_SECONDS
from autotune.executor.worker_keeper import LOST, WorkerKeeper
from autotune.trial import Conditions, Outcome, Status

DROP_SECONDS: Final = 1.0  # what is left to screenings of lent workers whose outcomes are dropped, all of them together
OWN_DROP_SECONDS: Final = 4.0  # and to that of the own worker, which is wanted next: to start another takes as long


class Screener:
    """One worker that screens.

    Attributes:
        health: judges its GPU where others could do its work; None for the only one.
        compiled: the candidate that it screens, as it was compiled.
        is_idle: it could be asked when it was last looked at. Another look could swallow what is waited for.
        on_return: called with the error that it met, or None, where it is given back after it was lent.
    """

    def __init__(self, workers: WorkerKeeper, health: GpuHealth | None = None) -> None:
        self.workers = workers
        self.health = health
        self.compiled: Outcome | None = None
        self.is_idle = False
        self.on_return: Callable[[AutotuneError | None], None] | None = None
        self._owes = False
        self._patience = 0.0
        self._deadline = math.inf

    def look(self) -> None:
        """Note if the worker can be asked; raises what ``WorkerKeeper.is_ready`` does."""
        self.is_idle = self.compiled is None and self.workers.is_ready(0.0)

    def ask(self, compiled: Outcome, *, early_stop: bool, patience: float) -> bool:
        """Ask for a verdict, within so many seconds of silence; False if the worker has died meanwhile."""
        self._patience, self._deadline = patience, time.monotonic() + patience
        if self.workers.ask(Screen(compiled.candidate, early_stop)):
            self.compiled, self._owes = compiled, True
            return True
        return False

    @property
    def is_awaited(self) -> bool:
        """True while it screens, or comes to be ready."""
        return self.compiled is not None or not self.is_idle

    @property
    def deadline(self) -> float:
        """Until when it may be silent."""
        return self.workers.deadline if self.compiled is None else self._deadline

    def next(self, wait: float = 0.0) -> Outcome | None:
        """Return the outcome of the screening, if it ended or its time did.

        Raises:
            UnusableGpuError: its GPU's times are not to be trusted any more; ``take_back`` has what it screened.
        """
        compiled = self.compiled
        if compiled is None:
            return None
        try:
            message = self.workers.receive(wait)
        except ChildDiedError as error:
            outcome = replace(compiled, status=Status.WORKER_DIED, message=str(error))
        except AutotuneError:
            self._owes = False
            raise
        else:
            if isinstance(message, WorkingOn):  # references of this implementation's cases, and then the candidate
                silence = SETUP_SECONDS if message.entrant is None else self._patience
                self._deadline = time.monotonic() + silence
                return None
            if isinstance(message, Outcome):
                outcome = replace(message, resources=compiled.resources, compile_seconds=compiled.compile_seconds)
            elif time.monotonic() < self._deadline:
                return None
            else:
                outcome = replace(compiled, status=Status.HANG, message=f"no answer within {self._patience:g} s")
        self._owes = False
        if outcome.status in LOST:
            self.workers.lose()
        if outcome.timing is not None:
            self.judge(outcome.conditions)
        self.compiled = None
        return outcome

    def judge(self, conditions: Conditions) -> None:
        """Raise UnusableGpuError if the GPU was disturbed too often in a row, and others could do its work."""
        if self.health is not None and (reason := self.health.judge(conditions)):
            raise UnusableGpuError(reason)

    def take_back(self) -> Outcome | None:
        """Return what it screens, to be screened by another; its worker is ended if it still does."""
        compiled, self.compiled = self.compiled, None
        if self._owes:
            self._owes = False
            self.workers.lose()
        return compiled

    def drop(self, until: float) -> None:
        """Forget what is screened; it is left until a time to end, or it is ended with its worker."""
        try:
            while self.next(max(0.0, until - time.monotonic())) is None and self.compiled and time.monotonic() < until:
                pass  # it told of a step
        except AutotuneError:
            pass  # met again by what comes next
        except KeyboardInterrupt:
            if not self.workers.is_interrupted:
                raise  # Ctrl-C, in this very thread
        self.take_back()
