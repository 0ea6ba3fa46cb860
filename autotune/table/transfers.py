"""Transfer of optima between devices: the time of another kind's winner here, over that of the own winner."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.registry import get_implementation
from autotune.trial import Stage, Status, Trial

Problem = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The winner of one kind of device, tried at the same shape on another.

    Attributes:
        source: the winner on the other kind.
        target: the own winner.
        ratio: the time of the source's config there over the own winner's, from one race or one study's screening; 1
            where both are one config; None where it is not known.
        reason: what the ratio is from, or why it is not known.
    """

    source: Trial
    target: Trial
    ratio: float | None
    reason: str


def transfers(winners: Iterable[Trial], timed: Iterable[Trial] = ()) -> list[Transfer]:
    """Return a transfer for each pair of winners of one implementation, shape and policy on two models of device.

    Args:
        winners: one for each implementation, shape, device and policy.
        timed: any trials; of those on the target's very device its times are taken.

    Example:
        >>> [each.ratio for each in transfers(won, trials)]
        [1.0, 1.034, None]
    """
    by_problem: defaultdict[Problem, list[Trial]] = defaultdict(list)
    for winner in dict.fromkeys(winners):
        if winner.executor == "gpu":
            by_problem[winner.operation, winner.implementation, winner.shape, winner.policy].append(winner)
    pairs = [
        (source, target)
        for own in by_problem.values()
        for target in own
        for source in own
        if source.device.model != target.device.model
    ]
    wanted = {_place(target) for _, target in pairs}
    rows: defaultdict[Problem, list[Trial]] = defaultdict(list)
    for trial in dict.fromkeys(timed):
        if trial.executor == "gpu" and (place := _place(trial)) in wanted:
            rows[place].append(trial)
    return [_transfer(source, target, rows[_place(target)]) for source, target in pairs]


def _place(trial: Trial) -> Problem:
    return (trial.operation, trial.implementation, trial.shape, trial.policy, trial.device)


def _transfer(source: Trial, target: Trial, rows: Sequence[Trial]) -> Transfer:
    ratio, reason = _compare(source, target, rows)
    return Transfer(source=source, target=target, ratio=ratio, reason=reason)


def _compare(source: Trial, target: Trial, rows: Sequence[Trial]) -> tuple[float | None, str]:
    if source.config == target.config:
        return 1.0, "the same config"
    space = get_implementation(target.operation, target.implementation).space
    if (why := space.why_invalid(source.config, target.shape, target.device)) is not None:
        return None, f"invalid there: {why}"
    for stage, name in ((Stage.RACE, "race"), (Stage.SCREEN, "screening")):
        together = [
            times for times in _times(rows, stage).values() if source.config in times and target.config in times
        ]
        if together:  # the newest last
            times = together[-1]
            return times[source.config] / times[target.config], name
    tried = [row for row in rows if row.config == source.config]
    if tried and all(row.status not in (Status.OK, Status.SLOW) for row in tried):
        return None, f"{tried[-1].status.value} there"
    return None, "not timed there" if not tried else "not timed together there"


def _times(rows: Sequence[Trial], stage: Stage) -> Mapping[str, dict[Any, float]]:
    """Return the undisturbed times of each race, or of each study's screening, by config; the oldest first."""
    found: defaultdict[str, dict[Any, float]] = defaultdict(dict)
    for row in sorted(rows, key=lambda row: row.started_at):
        is_timed = row.status is Status.OK and row.timing is not None and not row.outcome.conditions.contended
        if row.stage is stage and is_timed:
            assert row.timing is not None
            found[row.race_id if stage is Stage.RACE else row.study][row.config] = row.timing.median_us
    return found
