"""Portfolios from recordings: the fewest configs that come near the best everywhere, and how far they carry."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from autotune.device import Device
from autotune.dispatch import choose
from autotune.dispatch.evidence import MIN_EVIDENCE
from autotune.implementation import Implementation
from autotune.likeness import likeness
from autotune.shape import Shape
from autotune.table import Assignment
from autotune.timing import TIE
from benchmarks.fitted_defaults import is_fitted, left_out_loss
from benchmarks.recorded_shapes import TOLERANCE, Member, RecordedShape


def cover(implementation: Implementation[Any], recordings: Sequence[RecordedShape]) -> list[Member]:
    """Choose members until each recording has one within ``TOLERANCE`` of its best: greedy, the most covering first.

    Of members that cover as many of those left, the space's default comes first, then the one that covers more of all,
    then the one with the least mean regret where it was timed, then the first in parameter order.
    """
    regrets: dict[Member, dict[int, float]] = {}
    for number, each in enumerate(recordings):
        for member in (None, *each.ratios):
            if (regret := each.regret(member)) is not None:
                regrets.setdefault(member, {})[number] = regret
    covered = {
        member: {number for number, regret in known.items() if regret <= TOLERANCE} for member, known in regrets.items()
    }

    def preference(member: Member) -> tuple[Any, ...]:
        known = regrets[member]
        order = () if member is None else implementation.space.order(member)
        return (member is not None, -len(covered[member]), sum(known.values()) / len(known), order)

    in_order = sorted(regrets, key=preference)
    members: list[Member] = []
    left = set[int]().union(*covered.values())  # all, since each has its best
    while left:
        members.append(max(in_order, key=lambda member: len(covered[member] & left)))  # the first of equals
        left -= covered[members[-1]]
    return members


def _covers(member: Member, recording: RecordedShape) -> bool:
    regret = recording.regret(member)
    return regret is not None and regret <= TOLERANCE


def assign(
    implementation: Implementation[Any],
    recordings: Iterable[RecordedShape],
    behind: Mapping[tuple[Shape, Device], float] | None = None,
) -> list[Assignment]:
    """Return the portfolio of one architecture: of each recorded shape its member, its regret, and how far it carries.

    Every class, of one type and padded head dims (``likeness``), has members of its own. A class has other members than
    the space's default only if these beat it on shapes that were left out: the class was then computed anew without the
    shape, the nearest of the others chose, and what it chose took less time in the mean than the default, where a
    choice that was not timed there is taken to lose twice what the default does.

    What was lost where a shape was left out is known of shapes that time enough configs (``is_broad``). Sweeps time
    all; of a grid, which times few, a choice that was not among them counts as the worst of the members that were, and
    ``TOLERANCE`` at least, or only choices that are good would be counted. Of the space's default another device of
    the architecture tells where this one did not time it (``default_regret``), unless it was fitted to the recordings:
    then what it lost counts where it was fitted without the shape (``benchmarks.fitted_defaults``).

    Args:
        behind: as of ``find_behind``.
    """
    recordings = list(recordings)
    classes: dict[tuple[object, ...], list[RecordedShape]] = {}
    for each in recordings:
        classes.setdefault(likeness(each.shape, each.device).kind, []).append(each)
    apart = devices_apart(recordings)
    rows = [row for found in classes.values() for row in _assign_class(implementation, found, apart)]
    return [replace(row, behind=behind.get((row.shape, row.device))) for row in rows] if behind else rows


def devices_apart(recordings: Iterable[RecordedShape]) -> float | None:
    """Return how far apart the regrets of the default are on two devices, where one shape was recorded on both.

    That is the mean of the differences, of either sign; None where there are fewer than ``MIN_EVIDENCE``.
    """
    shapes: dict[Shape, list[float]] = {}
    for each in recordings:
        if (regret := each.regret(None)) is not None and regret < math.inf:
            shapes.setdefault(each.shape, []).append(regret)
    differences = [abs(a - b) for known in shapes.values() for a, b in combinations(known, 2)]
    return sum(differences) / len(differences) if len(differences) >= MIN_EVIDENCE else None


def default_regret(recording: RecordedShape, recordings: Iterable[RecordedShape], apart: float | None) -> float | None:
    """Return what the default loses, by another device of the architecture where it was not timed on this one.

    There the most counts that it lost for this shape, where it is the same config, of the same source by the same
    Triton, and ``apart`` in addition.
    """
    if (own := recording.regret(None)) is not None or apart is None:
        return own

    def identity(each: RecordedShape) -> tuple[object, ...]:
        return each.shape, each.default, each.source_hash, each.triton

    same = (each for each in recordings if identity(each) == identity(recording))
    known = [regret for each in same if (regret := each.regret(None)) is not None]
    return max(known) + apart if known else None


def _assign_class(
    implementation: Implementation[Any], recordings: Sequence[RecordedShape], apart: float | None
) -> list[Assignment]:
    left_out = [_left_out_regret(implementation, each, recordings) for each in recordings]
    if _beats_default(implementation, recordings, left_out):
        members = cover(implementation, recordings)
        rows = _assigned(implementation, members, recordings)
        known = [
            (each.worst_regret(members) if regret is None else regret) if each.is_broad else None
            for each, regret in zip(recordings, left_out, strict=True)
        ]
    else:
        rows = _assigned(implementation, [None], recordings)
        known = [
            left_out_loss(implementation, each.shape, each.device)
            if is_fitted(implementation, each.shape)
            else default_regret(each, recordings, apart)  # which depends on no other shape
            for each in recordings
        ]
    pairs = [_transfer(implementation, each, recordings) for each in recordings]
    return [
        replace(row, left_out_regret=_finite(regret), transfer_distance=distance, transfer_regret=lost)
        for row, regret, (distance, lost) in zip(rows, known, pairs, strict=True)
    ]


def _default_left_out(implementation: Implementation[Any], recording: RecordedShape) -> float | None:
    """Return what the default loses at a shape, without having been fitted to it; None where that is not known."""
    if is_fitted(implementation, recording.shape):
        return left_out_loss(implementation, recording.shape, recording.device)
    return recording.regret(None)


def _beats_default(
    implementation: Implementation[Any], recordings: Sequence[RecordedShape], left_out: Sequence[float | None]
) -> bool:
    """Return True if choices for shapes that were left out take less time than the default, in the mean.

    It has to be by more than races can tell apart: the default is one rule, which says something of all shapes. A
    choice that was not timed there is taken to lose twice what the default loses, and ``TOLERANCE`` at least. One that
    computed wrong results there, or broke the GPU, is worse than any default.
    """
    if math.inf in left_out:
        return False
    gained = [
        default - (max(TOLERANCE, 2 * default) if regret is None else regret)
        for each, regret in zip(recordings, left_out, strict=True)
        if (default := _default_left_out(implementation, each)) is not None
    ]
    return sum(gained) > TIE * len(gained)


def _assigned(
    implementation: Implementation[Any], members: Sequence[Member], recordings: Iterable[RecordedShape]
) -> list[Assignment]:
    """Assign each recorded shape the first member that covers it, which is the one that covers most; else the first."""
    rows = []
    for each in recordings:
        member = next((member for member in members if _covers(member, each)), members[0])
        rows.append(
            Assignment(
                operation=implementation.operation,
                implementation=implementation.name,
                device=each.device,
                shape=each.shape,
                config=each.default if member is None else member,
                is_default=member is None,
                regret=_finite(each.regret(member)),
                default_regret=_finite(each.regret(None)),
                timed=each.timed,
                source_hash=each.source_hash,
                triton_version=each.triton,
            )
        )
    return rows


def _finite(regret: float | None) -> float | None:
    """Return None for what failed, of which no time is known."""
    return None if regret == math.inf else regret


def _left_out_regret(
    implementation: Implementation[Any], recording: RecordedShape, recordings: Sequence[RecordedShape]
) -> float | None:
    """Return the regret of what is served for a shape by what the others choose, on whatever device it is.

    That is their choice, or the space's default where it is refused; None where that was not timed.
    """
    others = [each for each in recordings if each.shape != recording.shape]
    rows = _assigned(implementation, cover(implementation, others), others)
    choice = choose(rows, implementation, recording.shape, recording.device)
    if (choice is None or choice.is_default) and is_fitted(implementation, recording.shape):
        return left_out_loss(implementation, recording.shape, recording.device)
    return recording.served_regret(None if choice is None or choice.is_default else choice.config)


def _transfer(
    implementation: Implementation[Any], recording: RecordedShape, recordings: Sequence[RecordedShape]
) -> tuple[float | None, float | None]:
    """Return how far the nearest other broad recording of the family is, and the regret of serving its winner here.

    A winner without a time here is not valid here, and gives way to that of the next recording, as the ladder's do; or
    a grid did not try it here, and nothing is known of the pair.
    """
    others = [each for each in recordings if each.is_broad and each.device == recording.device and each != recording]
    near = sorted(others, key=lambda each: (recording.shape.distance(each.shape), repr(each.shape)))
    for each in near if recording.is_broad else ():
        distance, regret = recording.shape.distance(each.shape), recording.served_regret(each.best)
        if 0.0 < distance < math.inf:
            if regret is not None:
                return distance, regret
            if implementation.space.why_invalid(each.best, recording.shape, recording.device) is None:
                break
    return None, None
