"""A recorded sweep answers instead of a GPU: searches, reports and tests run anywhere."""

import math
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

from autotune.device import Device
from autotune.errors import MissingDependencyError
from autotune.executor import BaselineResult, Baselines, Race
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome, Policy, Stage, Status, Toolchain, Trial


class ReplayExecutor:
    """Implements ``autotune.executor.Executor`` from recorded trials of one device.

    Screening answers with the recorded screening times. A race is answered by the recorded race if all its finalists
    were in it; otherwise all are answered by their screening, without a baseline, since times of a race and of a
    screening are not compared. Nothing here is measured.
    """

    name = "replay"
    capacity = 1

    def __init__(self, device: Device, trials: Sequence[Trial]) -> None:
        self._recorded = [trial for trial in trials if trial.device == device]
        if not self._recorded:
            raise MissingDependencyError(f"no sweep was recorded on {device.name}; run `autotune sweep` on one")
        self._queue: deque[Config] = deque()
        self.device = device
        self.worker = f"{socket.gethostname()}:replay"
        self._example = self._recorded[0]  # of the sweep that answers
        self._answers: dict[Stage, dict[Config, Trial]] = {}

    @property
    def policy(self) -> Policy:
        return self._example.policy

    @property
    def toolchain(self) -> Toolchain:
        """What the answering sweep was recorded with."""
        return self._example.toolchain

    def nearest(self, operation: Operation[Any], shape: Shape) -> Shape:
        """The recorded shape nearest to this one: times of one shape are never given out as those of another.

        Raises:
            MissingDependencyError: no recorded shape shares the family (dtype, head dims, masks).
        """
        shapes = {trial.shape for trial in self._recorded if trial.operation == operation.name}
        if not shapes:
            raise MissingDependencyError(
                f"no sweep of {operation.name} is recorded on {self.device.name}: its search needs the GPU; "
                f"`autotune search --operation {operation.name} --dry-run` plans one, "
                f"`autotune lookup --operation {operation.name}` says what is served"
            )
        found = min(shapes, key=lambda recorded: (shape.distance(recorded), repr(recorded)))
        if shape.distance(found) == math.inf:
            known = "; ".join(sorted(str(recorded) for recorded in shapes))
            raise MissingDependencyError(
                f"no recorded sweep resembles {shape}; recorded on {self.device.name}: {known}. "
                "A search for other dtypes, head dims and masks needs the GPU; `--dry-run` plans one"
            )
        return found

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        """Turn to a recorded shape.

        Raises:
            MissingDependencyError: that very shape was not recorded.
        """
        nearest = self.nearest(operation, shape)
        if nearest != shape:
            raise MissingDependencyError(f"no sweep was recorded for {shape}; the nearest is {nearest}")
        self._queue.clear()
        rows = [trial for trial in self._recorded if trial.shape == shape and trial.operation == operation.name]
        self._example = rows[0]
        races = sorted({trial.race_id for trial in rows if trial.stage is Stage.RACE})
        self._answers = {
            Stage.SCREEN: {trial.config: trial for trial in rows if trial.stage is Stage.SCREEN},
            Stage.RACE: {trial.config: trial for trial in rows if races and trial.race_id == races[-1]},
        }

    def submit(self, config: Config) -> None:
        self._queue.append(config)

    def collect(self, timeout: float | None = None) -> Outcome:
        return self._screened(self._queue.popleft())

    def race(self, configs: list[Config], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        self._queue.clear()
        raced = self._answers[Stage.RACE]
        if not all(config in raced for config in configs):
            return Race(tuple(map(self._screened, configs)))
        outcomes = tuple(raced[config].outcome for config in configs)
        example = next(iter(raced.values()), None)
        if example is None or not example.baseline:
            return Race(outcomes)
        return Race(outcomes, (BaselineResult(example.baseline, example.baseline_timing),))

    def _screened(self, config: Config) -> Outcome:
        recorded = self._answers[Stage.SCREEN].get(config)
        if recorded is None:
            return Outcome(config=config, status=Status.INVALID, message=f"not recorded for {self._example.shape}")
        return recorded.outcome

    def close(self) -> None:
        self._queue.clear()
