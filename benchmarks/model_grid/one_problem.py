"""One problem of a grid, recorded in a second or two: known configs first, a search where it pays, one short race."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autotune.dispatch import default_config
from autotune.errors import InvalidShapeError, SearchError
from autotune.executor import Executor
from autotune.operation import Operation
from autotune.search.finalists import race_finalists
from autotune.search.recorder import Recorder
from autotune.search.rotation import best_of
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store, ranked, winners
from autotune.trial import Outcome, Trial, median_us
from benchmarks.model_grid.knowledge import Knowledge, neighbours

RACE_SECONDS: Final = 1.0
SEARCH_SECONDS: Final = 4.0
RACED: Final = 6  # beside the defaults and what people write by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedProblem:
    """A problem that was recorded.

    Attributes:
        rows: every row of it, the known ones too.
        winner: the row of the newest race that is served.
        gain: how much longer the best of the first configs took than the best of all, 0.02 for 2 %; None where no
            search was made.
        measured: the number of configs that were measured now.
    """

    shape: Shape
    rows: tuple[Trial, ...]
    winner: Trial
    gain: float | None
    measured: int
    seconds: float


def record_problem(
    operation: Operation[Any],
    shape: Shape,
    executor: Executor,
    store: Store,
    knowledge: Knowledge,
    *,
    known: Iterable[Trial] = (),
    race_seconds: float = RACE_SECONDS,
    search_seconds: float = SEARCH_SECONDS,
    between: Callable[[], None] = lambda: None,
) -> RecordedProblem:
    """Measure the first configs of a problem, search on where that is expected to pay, and race the best.

    Every config is compiled, checked for correct numbers and screened as in a search, and every finalist is checked on
    the full shape before the race. Each wave of verdicts is stored as one batch before the next begins, so that a
    recording which is cut off goes on from there: what ``known`` rows of this source and toolchain say is not measured
    again.

    Args:
        knowledge: what is recorded so far; it learns what was found here.
        search_seconds: at most, for neighbours of the best, of which the best leads on.
        between: called between waves, to feed a pool that compiles ahead.

    Raises:
        InvalidShapeError: the implementation does not support the shape.
        SearchError: nothing was correct, or the inputs cannot be made.
        MissingDependencyError: this machine can neither compile nor launch.
    """
    started, implementation = time.monotonic(), knowledge.implementation
    space, device = implementation.space, executor.device
    if (reason := operation.unsupported(shape) or implementation.supports(shape, device)) is not None:
        raise InvalidShapeError(reason)
    executor.open(operation, shape)
    recorder = Recorder(
        *(operation, implementation, shape, executor, store, 0),
        served_default=default_config(implementation, shape, device),
        heuristics=[each for each in space.heuristics(shape, device) if space.why_invalid(each, shape, device) is None],
    )
    rows = recorder.resume(known)
    resumed = len(recorder.screened)
    _measure(executor, recorder, knowledge.first(shape))
    between()
    first, gain = best_of(recorder.screened.values()), None
    is_new = not rows  # what was raced once was searched then, or needed no search
    if is_new and first is not None and search_seconds > 0 and knowledge.is_search_worth(shape):
        gain = _climb(executor, recorder, first, time.monotonic() + search_seconds, between)
    race_finalists(
        {implementation.name: recorder},
        rows,
        always=[recorder.candidate(recorder.default)],
        beside=[recorder.candidate(each) for each in (space.default(shape, device), *recorder.heuristics)],
        count=RACED,
        seconds_left=lambda: race_seconds,
        race_seconds=lambda: race_seconds,
        on_race=lambda finalists: between(),
        baselines="none",
    )
    everything = (*recorder.screened.values(), *rows)
    if not (found := ranked(winners(rows))):
        raise SearchError(f"no config of {implementation.title} came to the end of a race for {shape}")
    knowledge.learn([everything])
    if gain is not None:
        knowledge.note_gain(shape, gain)
    return RecordedProblem(
        shape=shape,
        rows=everything,
        winner=found[0],
        gain=gain,
        measured=len(recorder.screened) - resumed,
        seconds=time.monotonic() - started,
    )


def _measure(executor: Executor, recorder: Recorder, configs: Iterable[Config], until: float | None = None) -> None:
    """Measure configs without a verdict, and store them as one batch; what did not end in time has none."""
    wanted = [config for config in configs if config not in recorder.screened]
    for config in wanted:
        executor.submit(recorder.candidate(config))
    outcomes: list[Outcome] = []
    try:
        for _ in wanted:
            left = None if until is None else max(0.0, until - time.monotonic())
            if (outcome := executor.collect(left)) is None:
                break
            outcomes.append(outcome)
    finally:
        if outcomes:
            recorder.keep_screened(*outcomes)


def _climb(
    executor: Executor, recorder: Recorder, first: Trial, until: float, between: Callable[[], None]
) -> float | None:
    """Try the neighbours of the best while they better it; return what was gained, None if none got a verdict."""
    space, shape, device = recorder.implementation.space, recorder.shape, executor.device
    best, known = first, len(recorder.screened)
    while time.monotonic() < until:
        _measure(executor, recorder, neighbours(space, best.config, shape, device), until)
        between()
        found = best_of(recorder.screened.values())
        if found is None or found.config == best.config:
            break
        best = found
    return median_us(first) / median_us(best) - 1.0 if len(recorder.screened) > known else None


def is_recorded(rows: Sequence[Trial], source_hash: str, triton: str) -> bool:
    """Return True if rows of a problem hold a race of this source and Triton that somebody won."""
    return any((row.source_hash, row.toolchain.triton) == (source_hash, triton) for row in winners(rows))
