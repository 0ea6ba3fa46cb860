"""The ladder: which stored rows may answer for a shape on a device, best first."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from autotune.device import Device
from autotune.dispatch.evidence import EXACT_REGRET, UNKNOWN, Expectation, Recorded, is_as_served, transfer_regret
from autotune.dispatch.provenance import Alternative, Provenance, Rung
from autotune.dispatch.table_reading import is_valid, served_of
from autotune.implementation import Implementation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Policy, Trial

if TYPE_CHECKING:
    from autotune.table import Assignment, Served

MAX_DISTANCE: Final = 1.0  # log2 units, a factor of two in one size: the farthest row of which a regret is expected
BASELINE_GAIN: Final = 1.01  # a baseline within 1 % of ours is no reason to serve it


def climb(
    shape: Shape,
    device: Device,
    rows: "Iterable[Served]",
    admitted: Sequence[Implementation[Any]],
    *,
    with_baselines: bool,
    portfolio: "Sequence[Assignment]" = (),
) -> Iterator[Alternative]:
    """Yield the candidates of rungs 1 to 3, best first.

    Args:
        rows: the stored winners of the operation; of those near the shape the valid ones are served.
        admitted: the implementations that may be served.
        with_baselines: also serve the baseline that was faster than the winner in the race of this very shape.
        portfolio: recordings of the device's architecture, by which the regret of a nearest row is expected.
    """
    implementations = {implementation.name: implementation for implementation in admitted}
    model = device.model
    candidates = [
        row for row in rows if shape.distance(row.trial.shape) <= MAX_DISTANCE and row.trial.device.model == model
    ]
    near = [
        (shape.distance(row.trial.shape), row)
        for row in served_of(candidates)
        if row.trial.implementation in implementations
    ]
    near.sort(key=lambda item: _remoteness(item[0], item[1], device))
    for distance, row in near:
        trial = row.trial
        implementation = implementations[trial.implementation]
        if implementation.space.why_invalid(trial.config, shape, device) is not None:
            continue
        rung, reason = _rung(distance, trial, device)
        recorded = _recorded(rung, distance, trial, shape, device, portfolio) if is_as_served(trial) else UNKNOWN
        version = implementation.library_version_of(trial.toolchain)
        measured = (trial.source_hash, trial.toolchain.triton)
        expected = Expectation(recorded, implementation, *measured, library_version=version)
        if with_baselines and distance == 0.0 and (name := _faster_baseline(trial)):
            why = f"{name} won the race of the kernel {reason}"
            found = Provenance(rung, why, trial, row.origin, distance, name, expected)
            yield Alternative(Candidate(name, Config()), found)
        found = Provenance(rung, reason, trial, row.origin, distance, "", expected)
        yield Alternative(trial.candidate, found)


def _recorded(
    rung: Rung,
    distance: float,
    trial: Trial,
    shape: Shape,
    device: Device,
    portfolio: "Sequence[Assignment]",
) -> Recorded:
    """Return the recorded regret of a row and the number of measurements behind it.

    That of an exact row is what its race cannot tell; of a nearest one what winners lost elsewhere on this model of
    device; of another power cap nothing is known.
    """
    if rung == "exact":
        return EXACT_REGRET, 1
    if rung != "nearest":
        return UNKNOWN
    own = [row for row in portfolio if row.implementation == trial.implementation]
    return transfer_regret(own, trial, shape, device, distance)


def _rung(distance: float, trial: Trial, device: Device) -> tuple[Rung, str]:
    """Return the rung that a row stands on, and the reason."""
    rung: Rung = "exact" if distance == 0.0 else "nearest"
    reason = f"tuned for this shape on {trial.device.name}"
    if distance > 0.0:
        reason = f"tuned for the nearest shape ({trial.shape}; {_away(distance)}) on {trial.device.name}"
    if trial.device != device:
        rung = "same model"
        reason += f" at {_cap(trial.device)}, not {_cap(device)} here"
    return rung, reason


def _cap(device: Device) -> str:
    watts = device.power_cap_watts
    return "an unknown power cap" if watts is None else f"a power cap of {watts} W"


def _away(distance: float) -> str:
    """Return a distance in two places, which are not rounded to none, nor to the largest that is served."""
    if distance < 0.01:
        return "less than 0.01 away"
    if MAX_DISTANCE < distance < MAX_DISTANCE + 0.01:
        return f"just over {MAX_DISTANCE:g} away"
    return f"{distance:.2f} away"


def _faster_baseline(trial: Trial) -> str:
    """Return the name of the baseline of a row's race if it was clearly faster than the row, or else ""."""
    if trial.timing is None or trial.baseline_timing is None:
        return ""
    is_faster = BASELINE_GAIN * trial.baseline_timing.median_us < trial.timing.median_us
    return trial.baseline if is_faster and not trial.baseline_timing.overlaps(trial.timing) else ""


def _remoteness(distance: float, row: "Served", device: Device) -> tuple[Any, ...]:
    """Order rows of the same power cap first, then of the nearest cap; of one shape those of the usual policy."""
    found = row.trial
    gap = abs((found.device.power_cap_watts or 0) - (device.power_cap_watts or 0))
    return (found.device != device, gap, distance, found.policy != Policy(), repr(found.shape))


def why_default(admitted: Sequence[Implementation[Any]], shape: Shape, device: Device, rows: "Iterable[Served]") -> str:
    """Return the reason why no row of the admitted implementations is served, and how the nearest one differs.

    What is served instead is left for the caller to add.
    """
    text = " or ".join(each.name for each in admitted)
    where = f"no tuned shape of {admitted[0].operation}/{text} on {device.name}"
    names = {each.name for each in admitted}
    own = [row for row in rows if row.trial.implementation in names and row.trial.device.model == device.model]
    if (near := _first_valid(own, shape.distance)) is None:
        return where + (", an architecture and no device" if device.name == device.arch else f" ({device.arch})")
    if (distance := shape.distance(near)) == math.inf:
        near = _first_valid(own, lambda other: _unlikeness(shape, other)) or near
        text = f"{where} is like it; the nearest, {near}, differs in {shape.differences(near)}"
    elif distance > MAX_DISTANCE:
        bound = f"within a distance of {MAX_DISTANCE:g} (a factor of two in one size)"
        text = f"{where} is {bound}; the nearest, {near}, is {_away(distance)}"
    else:
        text = f"{where} has a config that is valid here; the nearest, {near}, is {_away(distance)}"
    return text


def _first_valid(rows: "Iterable[Served]", key: Callable[[Shape], Any]) -> Shape | None:
    """Return the shape of the valid row that comes first by this key of its shape; None where no row is valid."""
    in_order = sorted(rows, key=lambda row: key(row.trial.shape))
    return next((row.trial.shape for row in in_order if is_valid(row)), None)


def _unlikeness(shape: Shape, other: Shape) -> tuple[int, float]:
    """Order shapes of other families: in how many fields they differ, then by sizes."""
    others = sum(ours != theirs for ours, theirs in zip(shape.family(), other.family(), strict=True))
    return (others, math.dist(shape.coordinates(), other.coordinates()))
