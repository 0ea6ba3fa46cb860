"""Seconds to compile and to judge a config, by recorded sweeps."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

from autotune.device import Device
from autotune.shape import Shape
from autotune.trial import Outcome, Stage, Trial

ASSUMED_COMPILE_SECONDS: Final = 1.5  # of one config on one core, where no sweep of the device says better


class Pace(NamedTuple):
    """Mean seconds that a config takes to compile on one core, with a cold cache, and to judge on the GPU.

    Without a source they are assumed.
    """

    compile_seconds: float
    judge_seconds: float
    source: str


class RecordedPace(NamedTuple):
    """The pace of a sweep, and the shape that it measured."""

    shape: Shape
    pace: Pace


def find_pace(shape: Shape, device: Device, sweeps: Iterable[tuple[str, list[Trial]]]) -> Pace:
    """Return the pace of the device's nearest sweep by name; another family is better than a guess."""
    return nearest_pace(shape, recorded_paces(device, sweeps))


def recorded_paces(device: Device, sweeps: Iterable[tuple[str, list[Trial]]]) -> list[RecordedPace]:
    """Return the pace of each of the device's sweeps, by name, that recorded it."""
    named = [
        (name, rows)
        for name, trials in sweeps
        if (rows := [trial for trial in trials if trial.device == device and trial.stage is Stage.SCREEN])
    ]
    cold = cold_compile_seconds([(rows[0].shape.family(), [trial.outcome for trial in rows]) for _, rows in named])
    paces = []
    for (name, rows), compiled in zip(named, cold, strict=True):
        judged = [s for trial in rows if (s := trial.outcome.judge_seconds) is not None]
        if judged and any(trial.outcome.compile_seconds is not None for trial in rows):
            pace = Pace(sum(compiled) / len(compiled), sum(judged) / len(judged), name)
            paces.append(RecordedPace(rows[0].shape, pace))
    return paces


def nearest_pace(shape: Shape, paces: Iterable[RecordedPace]) -> Pace:
    """Return the pace of the sweep nearest to a shape, of another family if need be; an assumed one without any."""
    known = [(shape.distance(there), _differences(shape, there), pace.source, pace) for there, pace in paces]
    return min(known, default=(0, 0, "", Pace(ASSUMED_COMPILE_SECONDS, 0.0, "")))[-1]


def _differences(shape: Shape, recorded: Shape) -> int:
    return sum(a != b for a, b in zip(shape.family(), recorded.family(), strict=False))


def cold_compile_seconds(sweeps: Sequence[tuple[Hashable, Iterable[Outcome]]]) -> list[list[float]]:
    """Return the seconds to compile each config with a cold cache; a sweep is its family and its outcomes.

    Later sweeps found the binaries of earlier ones in Triton's cache, so the largest of a binary's times is the cold
    one. What did not compile has no binary and is known by its family and config.
    """

    def key(family: Hashable, outcome: Outcome) -> Hashable:
        return outcome.resources.binary or (family, outcome.config)

    known = [(family, list(outcomes)) for family, outcomes in sweeps]
    longest: dict[Hashable, float] = defaultdict(float)
    for family, outcomes in known:
        for outcome in outcomes:
            longest[key(family, outcome)] = max(longest[key(family, outcome)], outcome.compile_seconds or 0.0)
    return [[longest[key(family, outcome)] for outcome in outcomes] for family, outcomes in known]
