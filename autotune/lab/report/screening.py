"""Trials grouped into comparable ones: the screened configs of one shape, under one source and toolchain."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from autotune.console.winners import policy_text
from autotune.registry import get_implementation
from autotune.space import Config, Space
from autotune.trial import Stage, Status, Trial, median_us

RowT = TypeVar("RowT")
KeyT = TypeVar("KeyT", bound=Hashable)

RIGHT = (Status.OK, Status.SLOW)  # statuses of configs whose time is right; slow ones were stopped early


@dataclass(frozen=True, eq=False)
class Screening:
    """The screened configs of an implementation for one shape on one device, a trial each, in the order tried."""

    trials: tuple[Trial, ...]

    @property
    def first(self) -> Trial:
        """The first trial, which shares operation, implementation, shape, device and policy with all others."""
        return self.trials[0]

    @property
    def space(self) -> Space[Any]:
        return get_implementation(self.first.operation, self.first.implementation).space

    @cached_property
    def timed(self) -> list[Trial]:
        """The trials with a time that is right, also of those stopped early, fastest first."""
        return sorted(filter(is_timed, self.trials), key=median_us)

    @cached_property
    def best(self) -> Trial | None:
        """The fastest trial that was not stopped early."""
        return next((trial for trial in self.timed if trial.status is Status.OK), None)

    @cached_property
    def default(self) -> Trial | None:
        """The space's default, where it was screened and has a time."""
        return next((trial for trial in self.timed if trial.is_default), None)

    @cached_property
    def is_sweep(self) -> bool:
        """True where every config that is valid today was tried."""
        tried = {trial.config for trial in self.trials}
        return all(config in tried for config in self.space.configs(self.first.shape, self.first.device))

    @property
    def is_replay(self) -> bool:
        """True where a recorded sweep answered, and nothing was measured."""
        return self.first.executor == "replay"

    @property
    def name(self) -> str:
        """The implementation and the shape, and the difference from other screenings of these on its device."""
        replayed = ", replayed" if self.is_replay else ""
        return f"{problem_text(self.first)}{policy_text(self.first.policy)}{replayed}"


def grouped(rows: Iterable[RowT], key: Callable[[RowT], KeyT]) -> dict[KeyT, list[RowT]]:
    """Group rows by a key, keys and rows in their order.

    Example:
        >>> grouped(["a", "bc", "d"], len)
        {1: ['a', 'd'], 2: ['bc']}
    """
    found: dict[KeyT, list[RowT]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def group(trials: Iterable[Trial]) -> list[Screening]:
    """Group screened trials, in the order of their shapes; times of two sources are never put together."""
    screened = (trial for trial in trials if trial.stage is Stage.SCREEN)
    found = []
    for rows in grouped(sorted(screened, key=lambda trial: (trial.started_at, trial.number)), _source).values():
        last: dict[Config, Trial] = {}
        for trial in rows:
            last.pop(trial.config, None)  # tried again: the last verdict counts, at its own place
            last[trial.config] = trial
        found.append(Screening(tuple(last.values())))
    return sorted(found, key=lambda screening: sorting_key(screening.first))


def _source(trial: Trial) -> tuple[Hashable, ...]:
    """Return all that comparable times have in common."""
    origin = (trial.executor, trial.source_hash, trial.toolchain.triton)
    return (trial.operation, trial.implementation, trial.device, trial.shape, trial.policy, *origin)


def sorting_key(trial: Trial) -> tuple[Any, ...]:
    """Return a trial's sorting key: operation, device, family and size of its shape, and implementation."""
    family = [(field is not None, field) for field in trial.shape.family()]  # None does not compare
    problem = (family, trial.shape.coordinates()[::-1], repr(trial.policy))
    return (trial.operation, trial.device.name, *problem, trial.implementation)


def problem_text(trial: Trial) -> str:
    return f"{trial.implementation}, {trial.shape}"


def is_timed(trial: Trial) -> bool:
    return trial.timing is not None and trial.status in RIGHT


def judged_seconds(trial: Trial) -> float:
    """Return the cost of a verdict: compiling, checking and timing."""
    return (trial.outcome.compile_seconds or 0.0) + (trial.outcome.judge_seconds or 0.0)


def span_text(values: Iterable[Any], text: Callable[[Any], str] = str) -> str:
    """Format the least and the largest of some values, once where both read the same.

    Example:
        >>> span_text([2, 7, 5]), span_text([4.0, 4.2], "{:.0f}".format)
        ('2 to 7', '4')
    """
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(map(text, (ordered[0], ordered[-1]))))
