"""Winners: the one trial of each operation, shape, device and policy that is served."""

import math
from collections.abc import Iterable
from dataclasses import astuple
from typing import Any, Final

from autotune.registry import get_operation
from autotune.trial import Stage, Status, Trial

TIE_RATIO: Final = 1.01  # medians within 1 % of the fastest are not told apart


def winners(trials: Iterable[Trial]) -> list[Trial]:
    """Choose the winner of each operation, shape, device and policy: a pure function of the set of trials.

    Only rows of a race decide, and only rows of one race are compared. A race's winner comes from its tie set: the
    ``ok`` rows whose interval overlaps the fastest's and whose median is within 1 % of it. Of those wins the default,
    then the least shared memory, the fewest registers, the first in parameter order. Of several races decides one
    measured on a GPU rather than replayed, then one whose winner was not contended, then the newest by its winner's
    ``started_at``, then the largest ``race_id``.

    Races may be merged in any order and grouping: as long as none is split,
    ``winners(winners(a) + winners(b)) == winners(a + b)``.
    """
    races: dict[tuple[object, ...], dict[tuple[str, str], list[Trial]]] = {}
    for trial in set(trials):
        if trial.stage is Stage.RACE and trial.race_id and trial.status is Status.OK and trial.timing is not None:
            key = (trial.operation, trial.shape, trial.device, trial.policy)
            races.setdefault(key, {}).setdefault((trial.race_id, trial.executor), []).append(trial)
    chosen = [max((tie_set(race)[0] for race in found.values()), key=_authority) for found in races.values()]
    return sorted(chosen, key=_place)


def tie_set(race: Iterable[Trial]) -> list[Trial]:
    """The ``ok`` trials of one race that measurement cannot tell from the fastest; the one to serve comes first."""
    timed = [(trial.timing, trial) for trial in race if trial.status is Status.OK and trial.timing is not None]
    fastest = min((timing for timing, _ in timed), key=astuple, default=None)
    if fastest is None:
        return []
    ties = [
        trial
        for timing, trial in timed
        if timing.overlaps(fastest) and timing.median_us <= TIE_RATIO * fastest.median_us
    ]
    return sorted(ties, key=_preference)


def _preference(trial: Trial) -> tuple[Any, ...]:
    resources = trial.outcome.resources
    order = get_operation(trial.operation).space.order(trial.config)
    unknown_last = (math.inf if value is None else value for value in (resources.shared_bytes, resources.registers))
    # One config timed twice in a race leaves only the measurements to tell the rows apart.
    return (not trial.is_default, *unknown_last, order, repr(trial))


def _authority(winner: Trial) -> tuple[Any, ...]:
    # Of the winner alone, not of its whole race: so winners may be merged again without their races.
    return (winner.executor == "gpu", not winner.outcome.conditions.contended, winner.started_at, winner.race_id)


def _place(winner: Trial) -> tuple[Any, ...]:
    identity = (*astuple(winner.device), *winner.shape.as_dict().values(), *astuple(winner.policy))
    return (winner.operation, *((value is not None, value) for value in identity))  # None does not compare
