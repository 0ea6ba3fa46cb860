"""Recorded shapes, each left out of the tables in turn: a part of ``benchmarks.served_regret``.

All of the ladder answers, with the rows and the portfolios of every other shape, and what was recorded of the shape
tells how long its answer takes. (Which configs are members of portfolios was chosen with it.) No GPU.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from autotune.device import Device
from autotune.dispatch import alternatives_for
from autotune.implementation import Implementation
from autotune.registry import our_implementations
from autotune.shape import Shape
from autotune.table import Assignment, Served, shipped_portfolios, shipped_winners, winners
from autotune.trial import Candidate
from benchmarks.drawn_regret import Decided, UntunedPick
from benchmarks.fitted_defaults import is_fitted, left_out_loss
from benchmarks.merge import RESULTS
from benchmarks.portfolios import tables_of
from benchmarks.recorded_shapes import RecordedShape, find_behind, read_recordings

# A grid times some dozen candidates of an implementation, and those are chosen by what was known of the default: of
# fewer in all that one is among them says little.
MIN_TIMED: Final = 16

Times = Mapping[Candidate, float]


def recorded_times(recordings: Mapping[str, Sequence[RecordedShape]]) -> Mapping[tuple[Shape, Device], Times]:
    """Return the times of candidates at each recorded shape and device, over that of the best of all implementations.

    An implementation that met no other one in a race there counts only where it is alone.

    Args:
        recordings: those of each implementation, by its name.
    """
    found: dict[tuple[Shape, Device], dict[Candidate, float]] = {}
    known = Counter((each.shape, each.device) for own in recordings.values() for each in own)
    for name, own in recordings.items():
        behind = find_behind(own, (each for other, all_ in recordings.items() if other != name for each in all_))
        for each in own:
            place = each.shape, each.device
            if place in behind or known[place] == 1:
                best = 1.0 + behind.get(place, 0.0)
                times = {Candidate(name, config): ratio * best for config, ratio in each.ratios.items()}
                found.setdefault(place, {}).update(times)
    return found


def leave_out_each(operation: str, results: Path = RESULTS) -> Iterator[tuple[Device, Decided | None]]:
    """Leave out each shape that is well recorded in turn; None of one that did not time what is served then."""
    ours = our_implementations(operation)
    recordings = {each.name: read_recordings(each, tables_of(each, results)) for each in ours}
    rows = [Served(trial, "shipped") for trial in winners(shipped_winners(operation, results=results))]
    portfolio = [
        row for each in ours for row in shipped_portfolios(operation, implementation=each.name, results=results)
    ]
    for (shape, device), times in recorded_times(recordings).items():
        if sum(time < math.inf for time in times.values()) >= MIN_TIMED:
            yield device, _leave_out(shape, device, times, rows, portfolio, ours)


def _time_of(
    candidate: Candidate, ours: Iterable[Implementation[Any]], shape: Shape, device: Device, times: Times
) -> float | None:
    """Return the time of what is served over the best; of a default that was fitted to the shape, without it."""
    implementation = next(each for each in ours if each.name == candidate.implementation)
    is_default = candidate.config == implementation.space.default(shape, device)
    if not is_default or not is_fitted(implementation, shape):
        return times.get(candidate)
    lost = left_out_loss(implementation, shape, device)
    own = [time for each, time in times.items() if each.implementation == candidate.implementation]
    return None if lost is None or not own else min(own) * (1.0 + lost)


def _leave_out(
    shape: Shape,
    device: Device,
    times: Times,
    rows: Iterable[Served],
    portfolio: Iterable[Assignment],
    ours: Iterable[Implementation[Any]],
) -> Decided | None:
    served = alternatives_for(
        shape,
        device,
        [row for row in rows if row.trial.shape != shape],
        [each for each in ours if each.supports(shape, device) is None],
        portfolio=[row for row in portfolio if row.shape != shape and row.device.arch == device.arch],
    )[0]
    if (time := _time_of(served.candidate, ours, shape, device, times)) is None:
        return None
    best = min(times, key=lambda candidate: times[candidate])
    return Decided(UntunedPick(shape, served.candidate, served.provenance), time / times[best] - 1.0, best)
