"""Trials grouped into what may be compared: the screened configs of one problem, under one source and toolchain."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autotune.device import Device
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.report.summary import policy_text
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Policy, Stage, Status, Trial


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The screened configs of one shape on one device: one trial a config, in the order in which they were tried."""

    operation: Operation[Any]
    shape: Shape
    device: Device
    policy: Policy
    trials: tuple[Trial, ...]

    @cached_property
    def timed(self) -> list[Trial]:
        """The trials with a time that is right, also of those stopped early, fastest first."""
        right = [trial for trial in self.trials if trial.timing and trial.status in (Status.OK, Status.SLOW)]
        return sorted(right, key=median_us)

    @cached_property
    def best(self) -> Trial | None:
        """The fastest at screening."""
        return next((trial for trial in self.timed if trial.status is Status.OK), None)

    @cached_property
    def default(self) -> Trial | None:
        """The space's default, where it was screened and has a time."""
        return next((trial for trial in self.timed if trial.is_default), None)

    @cached_property
    def failed(self) -> list[Trial]:
        """The trials without a right time."""
        return [trial for trial in self.trials if trial.status not in (Status.OK, Status.SLOW)]

    @cached_property
    def is_sweep(self) -> bool:
        """Whether every config that its space calls valid today was tried."""
        tried = {trial.config for trial in self.trials}
        return all(config in tried for config in self.operation.space.configs(self.shape, self.device))

    @property
    def is_replay(self) -> bool:
        """Whether a recorded sweep answered, so that nothing was measured."""
        return self.trials[0].executor == "replay"

    @property
    def name(self) -> str:
        """The shape, and what else tells it from other problems of its operation and device."""
        replayed = ", replayed" if self.is_replay else ""
        return f"{self.shape}{policy_text(self.policy)}{replayed}"


def group(trials: Iterable[Trial]) -> list[Problem]:
    """The problems of screened trials, in the order of their shapes; times of two sources are never put together."""
    groups: dict[tuple[object, ...], dict[Config, Trial]] = {}
    for trial in sorted(trials, key=lambda trial: (trial.started_at, trial.number)):
        if trial.stage is Stage.SCREEN:
            key = (
                *(trial.operation, trial.device, trial.shape, trial.policy),
                *(trial.executor, trial.source_hash, trial.toolchain.triton),
            )
            rows = groups.setdefault(key, {})
            rows.pop(trial.config, None)  # tried again: the last verdict counts, where it came
            rows[trial.config] = trial
    found = [_problem(list(rows.values())) for rows in groups.values()]
    return sorted(found, key=lambda problem: place(problem.trials[0]))


def place(trial: Trial) -> tuple[Any, ...]:
    """Where a trial's problem stands among others: by operation, device, family and size."""
    family = [(field is not None, field) for field in trial.shape.family()]  # None does not compare
    return (trial.operation, trial.device.name, family, trial.shape.coordinates()[::-1], repr(trial.policy))


def median_us(trial: Trial) -> float:
    """The median of a trial that has one, in microseconds."""
    assert trial.timing is not None
    return trial.timing.median_us


def judged_seconds(trial: Trial) -> float:
    """What a verdict cost: compiling, checking and timing."""
    return (trial.outcome.compile_seconds or 0.0) + (trial.outcome.judge_seconds or 0.0)


def _problem(rows: Sequence[Trial]) -> Problem:
    first = rows[0]
    return Problem(
        operation=get_operation(first.operation),
        shape=first.shape,
        device=first.device,
        policy=first.policy,
        trials=tuple(rows),
    )
