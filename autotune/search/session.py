"""One search: ask, judge, remember, race, choose; what was acknowledged is on disk before more is asked."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from autotune.errors import InvalidShapeError, SearchError
from autotune.executor import Executor
from autotune.executor.replay import ReplayExecutor
from autotune.executor.select import ExecutorInfo
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.registry import our_implementations
from autotune.search.budget import check_start
from autotune.search.finalists import FINALISTS, SWEEP_FINALISTS, choose_finalists, last_race, race_finalists
from autotune.search.observer import Observer
from autotune.search.proposals import make_proposals, most_in_flight
from autotune.search.recorder import Recorder
from autotune.search.result import MIN_RACE_SECONDS, Ending, ImplementationResult, Limits, SearchResult
from autotune.search.rotation import START_UP_SECONDS, ImplementationStudy, Rotation, best_of, reached_device
from autotune.search.sampler import DEFAULT_SAMPLER, Sampler
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store, ranked, tie_set, winners
from autotune.trial import Candidate, PriorPick, Trial


def search(
    operation: Operation[Any],
    shape: Shape,
    executor: Executor,
    store: Store,
    *,
    limits: Limits,
    implementations: Sequence[Implementation[Any]] = (),
    seed: int = 0,
    served: PriorPick | None = None,
    neighbours: Mapping[str, Sequence[Config]] | None = None,
    defaults: Mapping[str, Config] | None = None,
    heuristics: Mapping[str, Sequence[Config]] | None = None,
    sampler: Sampler = DEFAULT_SAMPLER,
    observer: Observer | None = None,
    started: float | None = None,
) -> SearchResult:
    """Find the fastest correct candidate for a shape, and keep every trial in the store.

    Each implementation has a study of its own: what is served for the shape is tried first, then what is served as its
    default, the winners of neighbouring shapes, the space's default and what people write by hand, then what the study
    proposes. The studies take turns with the executor. The best by screening of all are raced in one race against what
    is served and the defaults, which need no verdict for it, and the winner is chosen from the tie set. A second run
    resumes: what the store holds is not measured again.

    Args:
        limits: when to stop; the search also stops when every valid config was tried.
        implementations: those to tune; all of ours by default. One that cannot be tuned here is reported and left out.
        served: what the tables serve for this shape today; tried first, raced like the defaults, and noted in the rows
            of the race.
        neighbours: winners of similar shapes by implementation, tried early.
        defaults: what is served as default by implementation; that of its space where none is given.
        heuristics: what people write by hand by implementation, raced like the defaults.
        sampler: which proposals: ``exhaustive`` measures every valid config, in order.
        started: ``time.monotonic()`` at which the budget began to run; now by default.

    Raises:
        SearchError: not one config is valid and correct; the trials are in the store.
        InvalidShapeError: no implementation supports the shape.
        MissingDependencyError: nothing is recorded to replay, or this machine can neither compile nor launch.
    """
    started = time.monotonic() if started is None else started
    observer = observer or Observer()
    executor.open(operation, shape)  # before resuming: a replay's toolchain is that of the sweep it opens
    wanted = list(implementations) or our_implementations(operation.name)
    skipped = _skip(operation, wanted, shape, executor)
    recorders = [
        Recorder(
            *(operation, each, shape, executor, store, seed),
            served_default=(defaults or {}).get(each.name),
            heuristics=(heuristics or {}).get(each.name, ()),
            served=served,
        )
        for each in wanted
        if each.name not in skipped
    ]
    always = _raced_always(recorders, served)
    beside = [each.candidate(config) for each in recorders for config in each.heuristics]
    races = [each.resume(measured_fully=sampler == "exhaustive") for each in recorders]
    known = [trial for each in recorders for trial in each.screened.values()]
    if not known:
        elapsed = time.monotonic() - started
        if short := check_start(operation, shape, executor, limits, elapsed=elapsed, defaults=len(always)):
            observer.on_short_budget(short)
    room = min(executor.capacity, most_in_flight(sampler))
    ahead = _submit_ahead(recorders, always, limits, room)
    studies = [
        _open_study(each, rows, sampler, always, (neighbours or {}).get(each.implementation.name, ()))
        for each, rows in zip(recorders, races, strict=True)
    ]
    valid = {study.name: study.valid for study in studies}
    observer.on_start(operation, shape, valid=valid, resumed=len(known), best=best_of(known))
    for name, reason in skipped.items():
        observer.on_skipped(name, reason)
    rows = [row for study in studies for row in study.races]

    def finalists() -> list[Candidate]:
        screened = [trial for each in recorders for trial in each.screened.values()]
        return choose_finalists(screened, always, beside=beside)

    ending, is_decided, reached = Ending.INTERRUPTED, False, {"listed": time.monotonic()}
    try:
        expected = None if sampler == "exhaustive" else finalists
        rotation = Rotation(studies, limits, started, observer, room, ahead, expected)
        ending = rotation.run()
        if rotation.first_verdict is not None:
            reached["first_measured"] = rotation.first_verdict
        reached["screened"] = time.monotonic()
        raced = _require_measured(studies, limits, served)
        is_decided = race_finalists(
            raced,
            rows,
            always=[each for each in always if each.implementation in raced],
            beside=beside,
            count=SWEEP_FINALISTS if sampler == "exhaustive" else FINALISTS,
            seconds_left=lambda: _seconds_left(limits, started),
            race_seconds=lambda: _race_seconds(limits, started),
            on_race=observer.on_race,
        )
    except KeyboardInterrupt:
        ending = Ending.INTERRUPTED
    left_out = (ImplementationResult(implementation=name, skipped=why, statuses={}) for name, why in skipped.items())
    parts = [*(study.result() for study in studies), *left_out]
    conclude = partial(_conclude, operation, shape, studies, parts, rows)
    try:
        store.compact(operation.name, executor.device)
        result = conclude(ending)
    except KeyboardInterrupt:  # what was found is stored, and the next run compacts
        result = conclude(Ending.INTERRUPTED)
    stages = {name: moment - started for name, moment in reached.items()}
    return replace(result, seconds=time.monotonic() - started, is_decided=is_decided, stages=stages)


def _conclude(
    operation: Operation[Any],
    shape: Shape,
    studies: Sequence[ImplementationStudy],
    parts: Sequence[ImplementationResult],
    rows: Sequence[Trial],
    ending: Ending,
) -> SearchResult:
    screened = [trial for study in studies for trial in study.recorder.screened.values()]
    found = ranked(winners(rows))
    if not found and ending is not Ending.INTERRUPTED:
        raise SearchError(_why_nothing([*screened, *rows]))
    race = [row for row in rows if found and row.race_id == found[0].race_id] or last_race(rows)
    new = [trial for trial in (*screened, *rows) if any(study.is_new(trial) for study in studies)]
    return SearchResult(
        operation=operation,
        shape=shape,
        winner=next(iter(found), None),
        ties=tuple(tie_set(race)),
        best_screened=best_of(screened),
        implementations=tuple(parts),
        ending=ending,
        recorded=(*screened, *race),
        contended=sum(trial.outcome.conditions.contended for trial in new),
    )


def why_skipped(
    operation: Operation[Any], implementation: Implementation[Any], shape: Shape, executor: Executor | ExecutorInfo
) -> str | None:
    """Return the reason why nothing of an implementation can be tried for a shape, or None."""
    device, space = executor.device, implementation.space
    if (reason := implementation.supports(shape, device)) is not None:
        return f"{implementation.title} does not support {shape} on {device.name}: {reason}"
    recorded = executor.recorded_implementations(operation, shape) if isinstance(executor, ReplayExecutor) else None
    if recorded is not None and implementation.name not in recorded:
        return f"no sweep of {implementation.title} is recorded for {shape} on {device.name}"
    if next(space.configs(shape, device), None) is None:
        why = space.why_invalid(space.default(shape, device), shape, device)
        return f"no config of {implementation.title} is valid for {shape} on {device.name}; of the default: {why}"
    return None


def _skip(
    operation: Operation[Any], wanted: Sequence[Implementation[Any]], shape: Shape, executor: Executor
) -> dict[str, str]:
    """Return the implementations that cannot be tried here, each with the reason; some can."""
    reasons = {each.name: why_skipped(operation, each, shape, executor) for each in wanted}
    skipped = {name: reason for name, reason in reasons.items() if reason is not None}
    if len(skipped) < len(wanted):
        return skipped
    is_unsupported = all(each.supports(shape, executor.device) is not None for each in wanted)
    raise (InvalidShapeError if is_unsupported else SearchError)("; ".join(skipped.values()))


def _raced_always(recorders: Sequence[Recorder], served: PriorPick | None) -> list[Candidate]:
    """Return what no search may end with less than: what is served, if it is tuned and valid here, and the defaults."""
    defaults = [each.candidate(each.default) for each in recorders]
    of = next((each for each in recorders if served and served.candidate.implementation == each.name), None)
    if served is None or of is None or not of.is_valid(served.candidate.config):
        return defaults
    return list(dict.fromkeys([served.candidate, *defaults]))


def _submit_ahead(
    recorders: Sequence[Recorder], always: Sequence[Candidate], limits: Limits, room: float
) -> list[Candidate]:
    """Submit what is asked for first, so that it is compiled while a large space is listed; return what is not known.

    As many as have room and count within the limits; of an implementation that nothing compiles ahead, one.
    """
    by_name = {each.name: each for each in recorders}
    if limits.trials is not None:
        known = [trial for each in recorders for trial in each.screened.values()]
        room = min(room, limits.trials - sum(reached_device(trial.outcome) for trial in known))
    ahead: list[Candidate] = []
    for candidate in always:
        of = by_name[candidate.implementation]
        is_busy = not of.implementation.compiles_ahead and any(each.implementation == of.name for each in ahead)
        if len(ahead) < room and not is_busy and of.is_valid(candidate.config) and candidate.config not in of.screened:
            of.executor.submit(candidate)
            ahead.append(candidate)
    return ahead


def _open_study(
    recorder: Recorder, races: Sequence[Trial], sampler: Sampler, always: Iterable[Candidate], first: Iterable[Config]
) -> ImplementationStudy:
    space, shape, device = recorder.implementation.space, recorder.shape, recorder.executor.device
    own = [each.config for each in always if each.implementation == recorder.name]
    first = list(dict.fromkeys([*own, *first, space.default(shape, device), *recorder.heuristics]))
    past = [trial.outcome for trial in recorder.screened.values()]
    valid = list(space.configs(shape, device))  # once: a large space takes a while
    proposals = make_proposals(sampler, space, shape, device, seed=recorder.seed, first=first, past=past, valid=valid)
    return ImplementationStudy(recorder, proposals, races, valid=len(valid))


def _require_measured(
    studies: Iterable[ImplementationStudy], limits: Limits, served: PriorPick | None
) -> dict[str, Recorder]:
    """Return the recorders to race, by name: of implementations with verdicts, and of what is served."""
    found = {study.name for study in studies if study.recorder.screened}
    if found:
        found |= set() if served is None else {served.candidate.implementation}
        return {study.name: study.recorder for study in studies if study.name in found}
    assert limits.seconds is not None
    raise SearchError(
        f"the budget of {limits.seconds:g} s, and {START_UP_SECONDS:g} s more, ended before one config was measured; "
        f"give it at least {math.ceil(limits.seconds + 2 * START_UP_SECONDS)} s"
    )


def _race_seconds(limits: Limits, started: float) -> float:
    """Return what is left of the budget, at most the race's part, and never nothing."""
    return min(max(_seconds_left(limits, started), MIN_RACE_SECONDS / 2), limits.race_seconds)


def _seconds_left(limits: Limits, started: float) -> float:
    return math.inf if limits.seconds is None else started + limits.seconds - time.monotonic()


def _why_nothing(trials: Sequence[Trial]) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in Counter(t.status for t in trials).items())
    example = next((trial.outcome.message for trial in trials if trial.outcome.message), "")
    return f"no config is valid and correct here ({counts or 'none was tried'}); for example: {example or 'no message'}"
