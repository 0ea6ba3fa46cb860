"""Limits and results of searches, as plain data."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from autotune.operation import Operation
from autotune.shape import Shape
from autotune.trial import Candidate, Status, Trial

RACE_SHARE: Final = 0.3  # of a budget in seconds
MIN_RACE_SECONDS, MAX_RACE_SECONDS = 2.0, 12.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a search: configs that reached the device, and seconds from start to stored winner; None: no limit.

    Both count over all implementations. With ``converge`` the study of an implementation also ends when a quarter of
    its valid configs was tried and the last 30 gained less than 1 %.
    """

    trials: int | None = None
    seconds: float | None = None
    converge: bool = False

    @property
    def race_seconds(self) -> float:
        """The part of the budget that the race may take."""
        if self.seconds is None:
            return MAX_RACE_SECONDS
        return min(max(self.seconds * RACE_SHARE, MIN_RACE_SECONDS), MAX_RACE_SECONDS)


class Ending(StrEnum):
    """The reason why a search stopped asking for configs."""

    EXHAUSTED = "every valid config was tried"
    TRIALS = "the budget of trials was spent"
    SECONDS = "only the race's part of the budget of time was left"
    CONVERGED = "it had converged"
    INTERRUPTED = "it was interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplementationResult:
    """The part of one implementation in a search.

    ``skipped`` says why nothing of it was tried: it does not support the shape, has no valid config, or a replay has no
    recording of it. ``statuses`` count the verdicts of this run and of earlier ones, ``measured`` those of this run.
    """

    implementation: str
    skipped: str = ""
    valid: int = 0
    measured: int = 0
    resumed: int = 0
    statuses: Mapping[Status, int]
    best_screened: Trial | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search. ``winner`` is None only if it was interrupted before a race.

    ``recorded`` are the verdicts that it rests on, one a candidate, and the winner's race; ``ties`` are those of that
    race that measurement cannot tell from it. ``is_decided``: the last race had the GPU to itself and all finalists of
    what was screened, and came to a result. ``contended`` counts the rows of this run that were timed while another
    process used the GPU. ``stages`` are the seconds of the budget that were gone at each step of this run, ``seconds``
    at its end. Counts are over all ``implementations``.
    """

    operation: Operation[Any]
    shape: Shape
    winner: Trial | None
    ties: tuple[Trial, ...] = ()
    best_screened: Trial | None
    implementations: tuple[ImplementationResult, ...]
    ending: Ending
    seconds: float = 0.0
    recorded: tuple[Trial, ...] = ()
    is_decided: bool = True
    contended: int = 0
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def statuses(self) -> dict[Status, int]:
        """Count the verdicts on all candidates, of this run and of earlier ones."""
        return dict(sum((Counter(part.statuses) for part in self.implementations), Counter[Status]()))

    @property
    def valid(self) -> int:
        """The number of valid configs."""
        return sum(part.valid for part in self.implementations)

    @property
    def measured(self) -> int:
        """The number of verdicts of this run."""
        return sum(part.measured for part in self.implementations)

    @property
    def resumed(self) -> int:
        """The number of verdicts of earlier runs."""
        return sum(part.resumed for part in self.implementations)

    @property
    def interrupted(self) -> bool:
        """Return True if the caller stopped it: what was found until then stands."""
        return self.ending is Ending.INTERRUPTED

    @property
    def finalists(self) -> list[Candidate]:
        """The winner and what was level with it."""
        found = [self.winner, *self.ties]
        return list(dict.fromkeys(trial.candidate for trial in found if trial is not None))
