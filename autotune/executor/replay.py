"""A recorded sweep answers instead of a GPU: searches, reports and tests run anywhere."""

import math
import operator
import socket
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from autotune.device import Device
from autotune.errors import MissingDependencyError
from autotune.executor import BaselineResult, Baselines, Race
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.trial import Candidate, Outcome, Policy, Stage, Status, Toolchain, Trial
from autotune.tuning_command import operation_options
from autotune.units import few_text


class ReplayExecutor:
    """Implements ``autotune.executor.Executor`` from recorded trials of one device.

    Screening answers with the recorded screening times. A race is answered by the recorded race if all its finalists
    were in it; otherwise all are answered by their screening, without a baseline, since times of a race and of a
    screening are not compared. Nothing here is measured.
    """

    name = "replay"
    capacity = 1
    reached: Mapping[str, float] = MappingProxyType({})  # nothing is started

    def __init__(self, device: Device, trials: Sequence[Trial]) -> None:
        self._recorded = [trial for trial in trials if trial.device == device]
        if not self._recorded:
            raise MissingDependencyError(f"no sweep was recorded on {device.name}; run `autotune sweep` on one")
        self._queue: deque[Candidate] = deque()
        self.device = device
        self.worker = f"{socket.gethostname()}:replay"
        self._rows = self._recorded  # of the open problem
        self._screened: dict[Candidate, Trial] = {}
        self._raced: dict[Candidate, Trial] = {}

    @property
    def policy(self) -> Policy:
        return self._rows[0].policy

    @property
    def toolchain(self) -> Toolchain:
        return self._rows[0].toolchain

    def toolchain_of(self, implementation: str) -> Toolchain:
        rows = (trial for trial in self._rows if trial.implementation == implementation)
        return next(rows, self._rows[0]).toolchain

    def recorded_implementations(self, operation: Operation[Any], shape: Shape) -> list[str]:
        """Return the names of the implementations whose sweeps of that very shape are recorded."""
        return list(dict.fromkeys(trial.implementation for trial in self._rows_of(operation, shape)))

    def nearest(self, operation: Operation[Any], shape: Shape, implementations: Collection[str] = ()) -> Shape:
        """Return the nearest shape that was recorded of all these implementations, or if none is named, of any.

        Times of one shape are never given out as those of another.

        Raises:
            MissingDependencyError: no such shape shares the family (dtype, head dims, masks).
        """
        recorded: dict[Shape, set[str]] = {}
        for trial in self._recorded:
            if trial.operation == operation.name:
                recorded.setdefault(trial.shape, set()).add(trial.implementation)
        shapes = [each for each, names in recorded.items() if names.issuperset(implementations)]
        if not shapes:
            names = ",".join(implementations) if recorded else ""
            what = f"{operation.name}/{names}" if names else operation.name
            asked = operation_options(operation.name, shape)
            chosen, among = (f" --implementation {names}", f" --among {names}") if names else ("", "")
            raise MissingDependencyError(
                f"no sweep of {what} is recorded on {self.device.name}: its search needs the GPU; "
                f"`autotune search {asked}{chosen} --dry-run` plans one, "
                f"`autotune lookup {asked}{among}` says what is served"
            )
        found = min(shapes, key=lambda each: (shape.distance(each), repr(each)))
        if shape.distance(found) == math.inf:
            unlike = {str(each): sum(map(operator.ne, each.family(), shape.family())) for each in shapes}
            known = few_text(sorted(unlike, key=lambda text: (unlike[text], text)), "; ")
            raise MissingDependencyError(
                f"no recorded sweep resembles {shape}; recorded on {self.device.name}: {known}. "
                "A search for other dtypes, head dims and masks needs the GPU; `--dry-run` plans one"
            )
        return found

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        """Turn to a recorded shape; raise MissingDependencyError if that very shape was not recorded."""
        if (nearest := self.nearest(operation, shape)) != shape:
            raise MissingDependencyError(f"no sweep was recorded for {shape}; the nearest is {nearest}")
        self._queue.clear()
        self._rows = self._rows_of(operation, shape)
        self._screened = {trial.candidate: trial for trial in self._rows if trial.stage is Stage.SCREEN}
        self._raced = {}
        for name in self.recorded_implementations(operation, shape):  # of each, the newest race it was in
            races = [trial for trial in self._rows if trial.stage is Stage.RACE and trial.implementation == name]
            newest = max((trial.race_id for trial in races), default="")
            self._raced |= {trial.candidate: trial for trial in races if trial.race_id == newest}

    def submit(self, candidate: Candidate) -> None:
        self._queue.append(candidate)

    def collect(self, timeout: float | None = None) -> Outcome:
        return self._answer(self._queue.popleft())

    def expect_problem(
        self, operation: Operation[Any], shape: Shape, candidates: Sequence[Candidate], *, every_output: bool = False
    ) -> None:
        """Do nothing: a replay compiles nothing."""

    def expect_race(self, candidates: Sequence[Candidate], *, is_near: bool) -> None:
        """Do nothing: a replay compiles nothing."""

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        self._queue.clear()
        raced = [self._raced.get(candidate) for candidate in candidates]
        together = [trial for trial in raced if trial is not None]
        if len(together) < len(raced) or len({trial.race_id for trial in together}) > 1:
            return Race(tuple(map(self._answer, candidates)))
        outcomes = tuple(trial.outcome for trial in together)
        if not together or not together[0].baseline:
            return Race(outcomes)
        return Race(outcomes, (BaselineResult(together[0].baseline, together[0].baseline_timing),))

    def _rows_of(self, operation: Operation[Any], shape: Shape) -> list[Trial]:
        return [trial for trial in self._recorded if trial.shape == shape and trial.operation == operation.name]

    def _answer(self, candidate: Candidate) -> Outcome:
        if candidate in self._screened:
            return self._screened[candidate].outcome
        message = f"not recorded for {self._rows[0].shape}"
        return Outcome(candidate=candidate, status=Status.INVALID, message=message)

    def close(self) -> None:
        self._queue.clear()
