"""Summaries of many runs of a sampler on one half of the sweeps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from benchmarks.search_efficiency.machine import COMPILERS, Batches, Judged, simulate
from benchmarks.search_efficiency.metrics import (
    Floats,
    Interval,
    best_so_far,
    bootstrap,
    evaluations,
    interval,
    pick_sweeps,
    regret,
)
from benchmarks.search_efficiency.recordings import Half, Recording
from benchmarks.search_efficiency.samplers import Run

FRACTIONS: Final = (0.05, 0.10, 0.15, 0.20, 0.25, 0.50)
JUDGED_FRACTION: Final = 0.25  # where the targets are set
CURVE: Final = tuple(percent / 100 for percent in range(1, 51))
SERIAL_SECONDS: Final = (15, 30, 60, 120, 240)  # one compiler, one GPU
PARALLEL_SECONDS: Final = (2, 5, 10, 15, 20)  # 15 compilers, one GPU
TARGET_MEDIAN, TARGET_TAIL = 0.01, 0.03


class Spread(NamedTuple):
    low: float  # 5th
    median: float
    high: float  # 95th


@dataclass(frozen=True)
class Summary:
    """A sampler on one half of the sweeps.

    Regrets are by fraction of the valid configs evaluated, and by simulated seconds with one compiler and with many.
    ``p_score_led`` is the P score if every sampler had evaluated the space's default first, which ours always do.
    ``lead`` is the default sampler's ``p_score_led`` less this one's, paired over sweeps; None for itself. ``used`` is
    the part of the budget that was evaluated before the sampler ended, ``found_best`` the share of runs with no regret
    at 25 %.
    """

    sampler: str
    half: Half
    sweeps: int
    seeds: int
    runs: int
    p_score: Interval
    p_score_led: Interval
    lead: Interval | None
    p_score_by_sweep: dict[str, float]
    regret: dict[float, Spread]
    found_best: float
    serial_regret: dict[int, Spread]
    parallel_regret: dict[int, Spread]
    used: float
    asking_ms: float


def summarise(half: Half, recordings: Sequence[Recording], runs: Sequence[Run], default: str) -> list[Summary]:
    """Summarise every sampler that ran on all sweeps of a half, best P score first."""
    by_name = {recording.name: recording for recording in recordings if recording.half == half}
    found = {
        name: [run for run in runs if run.sampler == name and run.recording in by_name and run.trace]
        for name in dict.fromkeys(run.sampler for run in runs)
    }
    complete = {name: mine for name, mine in found.items() if {run.recording for run in mine} == set(by_name)}
    summaries = [_summary(name, half, by_name, complete, default) for name in complete] if by_name else []
    return sorted(summaries, key=lambda summary: -summary.p_score_led.mean)


def regret_at_seconds(recording: Recording, judged: Sequence[Judged], seconds: float) -> float:
    """Return the regret of the best verdict known at a moment; nothing known counts as the slowest time."""
    trace = [verdict.config for verdict in judged if verdict.seconds <= seconds]
    best = best_so_far(recording.times_us, trace, max(1, len(trace)))
    return float(regret(recording.times_us, best)[-1])


def regret_curve(recording: Recording, run: Run, fractions: Sequence[float]) -> Floats:
    counts = np.array([evaluations(recording.size, fraction) for fraction in fractions])
    return regret(recording.times_us, best_so_far(recording.times_us, run.trace, int(counts.max()))[counts - 1])


def _summary(
    name: str, half: Half, recordings: dict[str, Recording], runs: dict[str, list[Run]], default: str
) -> Summary:
    mine = runs[name]
    pairs = [(recordings[run.recording], run) for run in mine]
    curves = np.array([regret_curve(recording, run, FRACTIONS) for recording, run in pairs])
    serial = [
        (each, simulate(each, Batches([[i] for i in run.trace]), compilers=1, in_flight=1)) for each, run in pairs
    ]
    parallel = [(recording, _parallel(recording, run)) for recording, run in pairs]
    picks = pick_sweeps(len(recordings))
    scores = _p_scores(recordings, mine, lambda recording, run: run.trace)
    led = _p_scores(recordings, mine, _led)
    lead = None
    if default in runs and default != name:
        rival = _p_scores(recordings, runs[default], _led)
        lead = interval(_mean(rival) - _mean(led), bootstrap(rival, picks) - bootstrap(led, picks))
    return Summary(
        sampler=name,
        half=half,
        sweeps=len(recordings),
        seeds=min(map(len, scores)),
        runs=len(mine),
        p_score=interval(_mean(scores), bootstrap(scores, picks)),
        p_score_led=interval(_mean(led), bootstrap(led, picks)),
        lead=lead,
        p_score_by_sweep=dict(zip(recordings, map(float, map(np.mean, scores)), strict=True)),
        regret={fraction: spread(curves[:, column]) for column, fraction in enumerate(FRACTIONS)},
        found_best=float(np.mean(curves[:, FRACTIONS.index(JUDGED_FRACTION)] == 0)),
        serial_regret=_at_seconds(serial, SERIAL_SECONDS),
        parallel_regret=_at_seconds(parallel, PARALLEL_SECONDS),
        used=float(np.mean([len(run.trace) / recording.budget for recording, run in pairs])),
        asking_ms=float(1000 * sum(run.asking_seconds for run in mine) / sum(len(run.trace) for run in mine)),
    )


def spread(values: Floats | Sequence[float]) -> Spread:
    return Spread(*map(float, np.percentile(values, (5, 50, 95))))


def _parallel(recording: Recording, run: Run) -> list[Judged]:
    """Return the verdicts with many compilers: of the search with many in flight, or by the batches it asked for."""
    if run.pipelined is not None:
        return run.pipelined
    return simulate(recording, Batches(run.batches), compilers=COMPILERS, in_flight=recording.size)


def _led(recording: Recording, run: Run) -> list[int]:
    return [recording.default, *(index for index in run.trace if index != recording.default)]


def _p_scores(
    recordings: dict[str, Recording], runs: Sequence[Run], trace: Callable[[Recording, Run], list[int]]
) -> list[Floats]:
    return [
        np.array([recording.random_search.p_score(trace(recording, run)) for run in runs if run.recording == name])
        for name, recording in recordings.items()
    ]


def _mean(groups: Sequence[Floats]) -> float:
    return float(np.mean([group.mean() for group in groups]))


def _at_seconds(judged: Sequence[tuple[Recording, list[Judged]]], moments: Sequence[int]) -> dict[int, Spread]:
    return {moment: spread([regret_at_seconds(*each, moment) for each in judged]) for moment in moments}
