"""Differences of two tables: which winners moved, and by how much where one race compared them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.table.regrets import races_of
from autotune.table.vouched import TableFile, trials_of
from autotune.table.winners import winners
from autotune.trial import Status, Timing, Trial

Change = Literal["added", "removed", "moved", "measured again"]


@dataclass(frozen=True, slots=True)
class RacedPair:
    """The times of two candidates in one race, that of the old winner first, and its name."""

    race_id: str
    before: Timing
    after: Timing

    @property
    def gain(self) -> float:
        """The time of the old winner over the new one's, less one: 0.05 for 5 %, negative where it was faster."""
        return self.before.median_us / self.after.median_us - 1.0


@dataclass(frozen=True, slots=True)
class Difference:
    """A winner of one implementation, shape, device and policy that differs between two tables.

    ``before`` and ``after`` are the winners, None where a table has none. ``race`` is the newest in which both
    candidates of a winner that moved were measured; None where they were not raced together, and then their times are
    not compared.
    """

    change: Change
    before: Trial | None
    after: Trial | None
    race: RacedPair | None = None

    @property
    def trial(self) -> Trial:
        """The new winner, or the one that is gone."""
        found = self.after or self.before
        assert found is not None
        return found


def differences(before: Sequence[TableFile], after: Sequence[TableFile]) -> list[Difference]:
    """Compare the winners of two tables; equal ones are left out.

    Races of sweeps and grids that ship count beside those of winners, and nothing is served from them.

    Example:
        >>> old, new = (list(read_files([Path(name)], raise_damaged)) for name in ("old", "new"))
        >>> [each.change for each in differences(old, new)]
        ['moved']
    """
    old, new = (trials_of(file for file in files if not file.is_recording) for files in (before, after))
    winners_then, winners_now = ({_problem(each): each for each in winners(rows)} for rows in (old, new))
    moved = {key for key, then in winners_then.items() if key in winners_now and then.config != winners_now[key].config}
    races = _races(trial for trial in trials_of([*before, *after]) if _problem(trial) in moved)
    found = []
    for key in dict.fromkeys([*winners_then, *winners_now]):
        then, now = winners_then.get(key), winners_now.get(key)
        if then is None or now is None:
            found.append(Difference("removed" if now is None else "added", then, now))
        elif key in moved:
            found.append(Difference("moved", then, now, _compare(then, now, races.get(key, []))))
        elif then != now:
            found.append(Difference("measured again", then, now))
    return found


def _races(trials: Iterable[Trial]) -> dict[tuple[object, ...], list[list[Trial]]]:
    found: dict[tuple[object, ...], list[list[Trial]]] = {}
    for race in races_of(trials):
        by_implementation: dict[tuple[object, ...], list[Trial]] = {}
        for row in race:
            by_implementation.setdefault(_problem(row), []).append(row)
        for key, rows in by_implementation.items():
            found.setdefault(key, []).append(rows)
    return found


def _compare(then: Trial, now: Trial, races: Iterable[list[Trial]]) -> RacedPair | None:
    """Return the times of both candidates in the newest race that has both."""
    newest: tuple[tuple[object, ...], RacedPair] | None = None
    for race in races:
        times = {row.config: row.timing for row in race if row.status is Status.OK}
        before, after = times.get(then.config), times.get(now.config)
        if before is not None and after is not None:
            age = (race[0].executor == "gpu", max(row.started_at for row in race), race[0].race_id)
            if newest is None or age > newest[0]:
                newest = age, RacedPair(race[0].race_id, before, after)
    return None if newest is None else newest[1]


def _problem(trial: Trial) -> tuple[object, ...]:
    return (trial.operation, trial.implementation, trial.shape, trial.device, trial.policy)
