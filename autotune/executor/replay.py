"""A recorded sweep answers instead of a GPU: searches, reports and tests run anywhere."""

import math
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

from autotune.device import Device
from autotune.errors import MissingDependencyError
from autotune.executor import Baseline, Race
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome, Policy, Stage, Status, Toolchain, Trial


class ReplayExecutor:
    """Implements ``autotune.executor.Executor`` from recorded trials of one device.

    Screening answers with the recorded screening times, a race with the recorded race; a config that was not in the
    recorded race keeps its screening time. Nothing here is measured.
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
        self._source: Shape = self._recorded[0].shape
        self._answers: dict[Stage, dict[Config, Trial]] = {}

    @property
    def policy(self) -> Policy:
        return self._example.policy

    @property
    def toolchain(self) -> Toolchain:
        """What the answering sweep was recorded with."""
        return self._example.toolchain

    @property
    def _example(self) -> Trial:
        return next(trial for trial in self._recorded if trial.shape == self._source)

    def nearest(self, operation: Operation[Any], shape: Shape) -> Shape:
        """The recorded shape nearest to this one: times of one shape are never given out as those of another.

        Raises:
            MissingDependencyError: no recorded shape shares the family (dtype, head dims, masks).
        """
        shapes = {trial.shape for trial in self._recorded if trial.operation == operation.name}
        found = min(shapes, key=lambda recorded: (shape.distance(recorded), repr(recorded)), default=None)
        if found is None or shape.distance(found) == math.inf:
            known = "; ".join(sorted(str(recorded) for recorded in shapes)) or "none"
            raise MissingDependencyError(
                f"no recorded sweep resembles {shape}; recorded on {self.device.name}: {known}. "
                "A search for other dtypes, head dims and masks needs the GPU"
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
        self._source = shape
        self._queue.clear()
        rows = [trial for trial in self._recorded if trial.shape == shape and trial.operation == operation.name]
        races = sorted({trial.race_id for trial in rows if trial.stage is Stage.RACE})
        self._answers = {
            Stage.SCREEN: {trial.config: trial for trial in rows if trial.stage is Stage.SCREEN},
            Stage.RACE: {trial.config: trial for trial in rows if races and trial.race_id == races[-1]},
        }

    def submit(self, config: Config) -> None:
        self._queue.append(config)

    def collect(self) -> Outcome:
        config = self._queue.popleft()
        recorded = self._answers[Stage.SCREEN].get(config)
        if recorded is None:
            return Outcome(config=config, status=Status.INVALID, message=f"not recorded for {self._source}")
        return recorded.outcome

    def race(self, configs: list[Config], *, seconds: float, every_baseline: bool = False) -> Race:
        raced, screened = self._answers[Stage.RACE], self._answers[Stage.SCREEN]
        found = [raced.get(config) or screened.get(config) for config in configs]
        outcomes = tuple(trial.outcome for trial in found if trial is not None)
        example = next(iter(raced.values()), None)
        if example is None or not example.baseline:
            return Race(outcomes)
        return Race(outcomes, (Baseline(example.baseline, example.baseline_timing),))

    def close(self) -> None:
        self._queue.clear()
