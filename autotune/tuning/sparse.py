"""Shapes that the tables serve far from the best, or nobody knows how near: where tuning more is worth most."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autotune.device import Device
from autotune.dispatch import MAX_DISTANCE, pick_for_tuning
from autotune.dispatch.evidence import is_as_served
from autotune.operation import Operation
from autotune.registry import get_implementation
from autotune.shape import Shape
from autotune.table import races_of, undisturbed_times
from autotune.trial import Candidate, Toolchain, Trial
from autotune.tuning.workloads import find_implementations
from autotune.workload import Workload

ABOVE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseShape:
    """A shape, what is served for it, and how much longer that takes than the best as far as is known, 0.02 for 2 %.

    Attributes:
        rung: the rung of the ladder that it stands on.
        expected: its expected regret; None where nothing recorded tells.
        measured: its regret in the race of ``measured_at``, the nearest shape where it was raced on this device; None
            where it was in none within the reach of a row.
    """

    operation: Operation[Any]
    shape: Shape
    served: Candidate
    rung: str
    expected: float | None = None
    measured: float | None = None
    measured_at: Shape | None = None

    @property
    def regret(self) -> float | None:
        """The larger one of what is expected and what was measured; None where neither is known."""
        return max((each for each in (self.expected, self.measured) if each is not None), default=None)


def find_sparse(
    workloads: Iterable[Workload],
    device: Device,
    toolchain: Toolchain,
    rows: Iterable[Trial] = (),
    *,
    above: float = ABOVE,
    implementations: Sequence[str] = (),
) -> list[SparseShape]:
    """Return the shapes whose regret is above a bound, the largest first, and behind them those where none is known.

    Args:
        rows: trials; the races on this device of today's sources, as ``toolchain`` compiles them, are measurements.
        implementations: those that may be served, all of ours by default.

    Raises:
        InvalidShapeError: no implementation supports a shape.
    """
    races = _races(rows, device, toolchain)
    found = [_look_up(each, shape, device, races, implementations) for each, shape in dict.fromkeys(workloads)]
    chosen = [each for each in found if each.regret is None or each.regret > above]
    return sorted(chosen, key=lambda each: (each.regret is None, -(each.regret or 0.0)))  # stable: else as they came


def _races(
    rows: Iterable[Trial], device: Device, toolchain: Toolchain
) -> dict[tuple[str, Shape], dict[Candidate, float]]:
    """Return the times of the newest undisturbed race of each shape."""
    own = [
        row
        for row in rows
        if row.device == device
        and is_as_served(row)
        and get_implementation(row.operation, row.implementation).is_current(row, toolchain)
    ]
    return {(race[0].operation, race[0].shape): times for race in races_of(own) if (times := undisturbed_times(race))}


def _look_up(
    operation: Operation[Any],
    shape: Shape,
    device: Device,
    races: dict[tuple[str, Shape], dict[Candidate, float]],
    names: Sequence[str],
) -> SparseShape:
    among = tuple(each.name for each in find_implementations(operation, shape, device, names))
    kernel = pick_for_tuning(shape, device, operation.name, among)
    near = [
        (shape.distance(other), repr(other), other)
        for (of, other), times in races.items()
        if of == operation.name and kernel.candidate in times
    ]
    distance, _, at = min(near, default=(math.inf, "", None), key=lambda item: item[:2])
    measured = None
    if at is not None and distance <= MAX_DISTANCE:
        times = races[operation.name, at]
        measured = times[kernel.candidate] / min(times.values()) - 1.0
    return SparseShape(
        operation=operation,
        shape=shape,
        served=kernel.candidate,
        rung=kernel.provenance.rung,
        expected=kernel.provenance.expected_regret,
        measured=measured,
        measured_at=None if measured is None else at,
    )
