"""One problem of a grid, recorded in seconds: known configs first, a search where it pays, one short race of all."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autotune.dispatch import default_config
from autotune.errors import InvalidShapeError, SearchError
from autotune.executor import Executor
from autotune.operation import Operation
from autotune.search.finalists import FINALIST_RATIO, race_finalists
from autotune.search.recorder import Recorder
from autotune.search.rotation import best_of
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store, ranked, winners
from autotune.trial import Outcome, Trial, median_us
from benchmarks.model_grid.knowledge import Knowledge, neighbours

RACE_SECONDS: Final = 1.0
SEARCH_SECONDS: Final = 4.0
RACED: Final = 6  # of each implementation, beside the defaults and what people write by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedProblem:
    """A problem that was recorded.

    Attributes:
        rows: every row of it, of all implementations, the known ones too.
        ranked: the rows of the newest race that may be served, one of each implementation, the best first.
        gains: by implementation, how much longer the best of the first configs took than the best of all, 0.02 for 2 %;
            of those that were searched.
        measured: the number of configs that were measured now.
    """

    shape: Shape
    rows: tuple[Trial, ...]
    ranked: tuple[Trial, ...]
    gains: Mapping[str, float]
    measured: int
    seconds: float


def record_problem(
    operation: Operation[Any],
    shape: Shape,
    executor: Executor,
    store: Store,
    knowledge: Sequence[Knowledge],
    *,
    known: Iterable[Trial] = (),
    race_seconds: float = RACE_SECONDS,
    search_seconds: float = SEARCH_SECONDS,
) -> RecordedProblem:
    """Measure the first configs of a problem, search on where that is expected to pay, and race the best of all.

    Every config is compiled, checked for correct numbers and screened as in a search, and every finalist is checked on
    the full shape before the race, in which the implementations meet. Each wave of verdicts is stored as one batch
    before the next begins, so that a recording which is cut off goes on from there: what ``known`` rows of this source
    and toolchain say is not measured again.

    Args:
        knowledge: what is recorded so far of each implementation to measure; it learns what was found here.
        race_seconds: of each implementation.
        search_seconds: of each implementation, at most, for neighbours of its best, of which the best leads on.

    Raises:
        InvalidShapeError: an implementation does not support the shape.
        SearchError: nothing was correct, or the inputs cannot be made.
        MissingDependencyError: this machine can neither compile nor launch.
    """
    started, device, rows = time.monotonic(), executor.device, list(known)
    for each in knowledge:
        if (reason := operation.unsupported(shape) or each.implementation.supports(shape, device)) is not None:
            raise InvalidShapeError(reason)
    executor.open(operation, shape)
    parts = {each.implementation.name: each for each in knowledge}
    recorders = {name: _recorder(operation, part, shape, executor, store) for name, part in parts.items()}
    raced = [row for name, recorder in recorders.items() for row in recorder.resume(_rows_of(name, rows))]
    resumed = {name: len(recorder.screened) for name, recorder in recorders.items()}
    for name, recorder in recorders.items():
        _measure(executor, recorder, parts[name].first(shape))
    gains = {}
    for name in _worth_searching(recorders, parts, raced) if search_seconds > 0 else ():
        gain = _climb(executor, recorders[name], time.monotonic() + search_seconds)
        if gain is not None:
            gains[name] = gain
    seconds = race_seconds * len(recorders)
    race_finalists(
        recorders,
        raced,
        always=[recorder.candidate(recorder.default) for recorder in recorders.values()],
        beside=[
            recorder.candidate(config)
            for recorder in recorders.values()
            for config in (recorder.implementation.space.default(shape, device), *recorder.heuristics)
        ],
        count=RACED,
        seconds_left=lambda: seconds,
        race_seconds=lambda: seconds,
        on_race=lambda finalists: None,
        baselines="none",
    )
    everything = (*(row for recorder in recorders.values() for row in recorder.screened.values()), *raced)
    if not (found := ranked(winners(raced))):
        titles = " or ".join(each.implementation.title for each in knowledge)
        raise SearchError(f"no config of {titles} came to the end of a race for {shape}")
    for name, part in parts.items():
        part.learn([_rows_of(name, everything)])
        if name in gains:
            part.note_gain(shape, gains[name])
    return RecordedProblem(
        shape=shape,
        rows=everything,
        ranked=tuple(found),
        gains=gains,
        measured=sum(len(recorder.screened) - resumed[name] for name, recorder in recorders.items()),
        seconds=time.monotonic() - started,
    )


def _recorder(operation: Operation[Any], part: Knowledge, shape: Shape, executor: Executor, store: Store) -> Recorder:
    implementation, space, device = part.implementation, part.implementation.space, executor.device
    return Recorder(
        *(operation, implementation, shape, executor, store, 0),
        served_default=default_config(implementation, shape, device),
        heuristics=[each for each in space.heuristics(shape, device) if space.why_invalid(each, shape, device) is None],
    )


def _rows_of(name: str, rows: Iterable[Trial]) -> list[Trial]:
    return [row for row in rows if row.implementation == name]


def _worth_searching(
    recorders: Mapping[str, Recorder], parts: Mapping[str, Knowledge], raced: Sequence[Trial]
) -> list[str]:
    """List the implementations whose neighbours are worth a search: near the best of all, and where it paid before.

    One that was raced once was searched then, or needed no search.
    """
    best = {name: found for name, each in recorders.items() if (found := best_of(each.screened.values())) is not None}
    least = min(map(median_us, best.values()), default=math.inf)
    known = {row.implementation for row in raced}
    return [
        name
        for name, found in best.items()
        if name not in known
        and median_us(found) <= FINALIST_RATIO * least
        and parts[name].is_search_worth(recorders[name].shape)
    ]


def _measure(executor: Executor, recorder: Recorder, configs: Iterable[Config], until: float | None = None) -> None:
    """Measure configs without a verdict, and store them as one batch; what did not end in time has none."""
    wanted = [config for config in configs if config not in recorder.screened]
    for config in wanted:
        executor.submit(recorder.candidate(config))
    waiting, outcomes = set(map(recorder.candidate, wanted)), list[Outcome]()
    try:
        while waiting:
            left = None if until is None else max(0.0, until - time.monotonic())
            if (outcome := executor.collect(left)) is None:
                break
            if outcome.candidate in waiting:  # not of another implementation, whose time was up before
                waiting.remove(outcome.candidate)
                outcomes.append(outcome)
    finally:
        if outcomes:
            recorder.keep_screened(*outcomes)


def _climb(executor: Executor, recorder: Recorder, until: float) -> float | None:
    """Try the neighbours of the best while they better it; return what was gained, None if none got a verdict."""
    space, shape, device = recorder.implementation.space, recorder.shape, executor.device
    first = best = best_of(recorder.screened.values())
    known = len(recorder.screened)
    while best is not None and time.monotonic() < until:
        _measure(executor, recorder, neighbours(space, best.config, shape, device), until)
        found = best_of(recorder.screened.values())
        if found is None or found.config == best.config:
            break
        best = found
    if first is None or best is None or len(recorder.screened) == known:
        return None
    return median_us(first) / median_us(best) - 1.0


def is_recorded(rows: Sequence[Trial], source_hash: str, triton: str) -> bool:
    """Return True if rows of a problem hold a race of this source and Triton that somebody won."""
    return any((row.source_hash, row.toolchain.triton) == (source_hash, triton) for row in winners(rows))
