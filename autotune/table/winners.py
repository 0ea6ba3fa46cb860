"""Winners: the one trial of each implementation, shape, device and policy that may be served, and their order."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from autotune.registry import get_implementation, implementation_names
from autotune.shape import values_getter
from autotune.table.schema import MAX_TEXT_LENGTH
from autotune.trial import Stage, Status, Trial

TIE_RATIO: Final = 1.01  # medians within 1 % of the fastest are not told apart
IMPORTED: Final = " (imported)"  # how the ``race_id`` of a row ends whose time nothing here confirmed


def winners(trials: Iterable[Trial]) -> list[Trial]:
    """Choose the winner of each implementation, shape, device and policy: a pure function of the set of trials.

    Only rows of a race decide, and only rows of one race are compared. An implementation's winner of a race comes from
    the tie set of its rows: the ``ok`` rows whose interval overlaps the fastest's and whose median is within 1 % of it.
    Of those wins the default, then the least shared memory, the fewest registers, the first in parameter order. Of
    several races decides one measured on a GPU rather than replayed, then one that was not imported, then one whose
    winner was not contended, then the newest by its winner's ``started_at``, then the largest ``race_id``.

    Races may be merged in any order and grouping: as long as none is split,
    ``winners(winners(a) + winners(b)) == winners(a + b)``.
    """
    races: dict[tuple[object, ...], dict[tuple[str, str], list[Trial]]] = {}
    for trial in trials:
        if trial.stage is Stage.RACE and trial.race_id and trial.status is Status.OK and trial.timing is not None:
            key = (trial.operation, trial.implementation, trial.shape, trial.device, trial.policy)
            races.setdefault(key, {}).setdefault((trial.race_id, trial.executor), []).append(trial)
    chosen = [
        max((race[0] if len(race) == 1 else tie_set(set(race))[0] for race in found.values()), key=_authority)
        for found in races.values()
    ]
    return sorted(chosen, key=_place)


def ranked(rows: Iterable[Trial], precedence: Callable[[Trial], int] = lambda trial: 0) -> list[Trial]:
    """Order the winners of one operation, shape, device and policy, one of each implementation, the best first.

    Rows of one race are compared by its times, and of a tie the one of ours comes first, then the one registered first.
    Rows of different races are not compared: those of a race with the least ``precedence``, then of the most
    authoritative race come first, and races without a row of ours last.
    """
    races: dict[tuple[str, str], list[Trial]] = {}
    for row in rows:
        races.setdefault((row.race_id, row.executor), []).append(row)
    in_order = sorted(races.values(), key=lambda race: max(map(_authority, race)), reverse=True)
    in_order.sort(key=lambda race: (not any(map(_is_ours, race)), min(map(precedence, race))))
    return [row for race in in_order for row in _by_time(race)]


def tie_set(race: Iterable[Trial]) -> list[Trial]:
    """Return the ``ok`` trials of one race that measurement cannot tell from the fastest, the one to serve first.

    Of several implementations ours come first, then those that were registered first.
    """
    timed = [(trial.timing, trial) for trial in race if trial.status is Status.OK and trial.timing is not None]
    fastest = min((timing for timing, _ in timed), key=_values, default=None)
    if fastest is None:
        return []
    ties = [
        trial
        for timing, trial in timed
        if timing.overlaps(fastest) and timing.median_us <= TIE_RATIO * fastest.median_us
    ]
    return ties if len(ties) == 1 else sorted(ties, key=_preference)


def as_imported(trial: Trial) -> Trial:
    """Return a row of others as it is kept here: its time is their claim, and decides where no race here does."""
    if trial.race_id.endswith(IMPORTED):
        return trial
    return replace(trial, race_id=f"{trial.race_id[: MAX_TEXT_LENGTH - len(IMPORTED)]}{IMPORTED}")


def _by_time(race: list[Trial]) -> list[Trial]:
    """Order the rows of one race: what is tied with the fastest, then what is tied with the fastest of the rest."""
    left, found = list(race), []
    while best := tie_set(left):
        found.append(best[0])
        left.remove(best[0])
    return found


def _is_ours(trial: Trial) -> bool:
    return get_implementation(trial.operation, trial.implementation).is_ours


def _preference(trial: Trial) -> tuple[Any, ...]:
    resources = trial.outcome.resources
    implementation = get_implementation(trial.operation, trial.implementation)
    registered = implementation_names(trial.operation).index(trial.implementation)
    order = implementation.space.order(trial.config)
    unknown_last = (math.inf if value is None else value for value in (resources.shared_bytes, resources.registers))
    # One config timed twice in a race leaves only the measurements to tell the rows apart.
    return (not implementation.is_ours, registered, not trial.is_default, *unknown_last, order, repr(trial))


def _authority(winner: Trial) -> tuple[Any, ...]:
    # Of the winner alone, not of its whole race: so winners may be merged again without their races.
    is_own = not winner.race_id.endswith(IMPORTED)
    is_alone = not winner.outcome.conditions.contended
    return (winner.executor == "gpu", is_own, is_alone, winner.started_at, winner.race_id)


def _place(winner: Trial) -> tuple[Any, ...]:
    identity = (*_values(winner.device), *_values(winner.shape), *_values(winner.policy))
    names = (winner.operation, winner.implementation)
    return (*names, *[(value is not None, value) for value in identity])  # None does not compare


def _values(part: Any) -> tuple[Any, ...]:
    """Return the values of a dataclass, without ``astuple``'s copies."""
    return values_getter(tuple(type(part).__dataclass_fields__))(part)
