"""Served regret as races measured it: the time of what the tables served before a shape was tuned, over the best."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from autotune.table.winners import ranked, winners
from autotune.trial import Candidate, Stage, Status, Timing, Trial

AS_EXPECTED: Final = 0.03  # an expected regret this near the measured one was right
AS_EXPECTED_SHARE: Final = 0.90  # of the measurements, wanted to be right


class Expected(Protocol):
    """A regret that was expected of what stood on a rung, and the one that was measured; None where not known."""

    @property
    def rung(self) -> str: ...

    @property
    def expected(self) -> float | None: ...

    @property
    def regret(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRegret:
    """The verdict of one race on what was served before it.

    Attributes:
        winner: the winner of the race, of all implementations.
        served: what the tables served for the shape before it was tuned; None where it has no row among those given.
        rung: the rung of the ladder that it stood on.
        timing: its time in the race; None where it failed.
        best_us: the least median of the race, in microseconds.
        expected: the regret that was expected of it, 0.02 for 2 %, by ``evidence``, a number of measurements; None and
            0 where nothing told.
    """

    winner: Trial
    served: Candidate | None
    rung: str
    timing: Timing | None
    best_us: float
    expected: float | None = None
    evidence: int = 0

    @property
    def regret(self) -> float | None:
        """Its time over that of the best, less one: 0.02 for 2 %; None where it failed."""
        return None if self.timing is None else max(0.0, self.timing.median_us / self.best_us - 1.0)


def races_of(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Return the rows of each race, of all its implementations, the oldest race first."""
    races: dict[tuple[object, ...], list[Trial]] = {}
    for row in trials:
        if row.stage is Stage.RACE and row.race_id:
            key = (row.race_id, row.operation, row.shape, row.device, row.policy, row.executor)
            races.setdefault(key, []).append(row)
    return sorted(races.values(), key=lambda race: race[0].race_id)  # which begins with when it was kept


def served_regrets(trials: Iterable[Trial]) -> list[ServedRegret]:
    """Return what each race says of what was served before it, oldest first.

    Races that do not say it, that another process disturbed, or in which nothing was right, are left out.
    """
    found = [each for race in races_of(trials) if (each := regret_of(race)) is not None]
    return sorted(found, key=lambda each: (each.winner.started_at, each.winner.race_id))


def regret_of(race: Sequence[Trial]) -> ServedRegret | None:
    """Read from the rows of one race the regret of what was served before; None where they do not tell."""
    rung = race[0].served_rung if race else None
    times = undisturbed_times(race)
    if rung is None or not times:
        return None
    return ServedRegret(
        winner=ranked(winners(race))[0],
        served=next((row.candidate for row in race if row.is_served), None),
        rung=rung,
        timing=race[0].served_timing,
        best_us=min(times.values()),
        expected=race[0].expected_regret,
        evidence=race[0].evidence or 0,
    )


def undisturbed_times(race: Sequence[Trial]) -> dict[Candidate, float]:
    """Return the median of each candidate that was right in a race, of none where another process disturbed it."""
    if any(row.outcome.conditions.contended for row in race):
        return {}
    return {row.candidate: row.timing.median_us for row in race if row.status is Status.OK and row.timing is not None}


def as_expected(measured: Iterable[Expected]) -> tuple[int, int]:
    """Count the regrets that were measured within ``AS_EXPECTED`` of what was expected, and those where something was.

    What was served from a row of the very shape does not count: that its race cannot tell it from the best is known.

    Example:
        >>> near, known = as_expected(served_regrets(Store(home()).trials("flash_attention")))
    """
    known = [
        (each.expected, each.regret)
        for each in measured
        if each.rung != "exact" and each.expected is not None and each.regret is not None
    ]
    return sum(abs(expected - regret) <= AS_EXPECTED for expected, regret in known), len(known)
