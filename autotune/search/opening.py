"""The opening of a search: the implementations that take part, what is raced in any case, and the studies."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import InvalidShapeError, SearchError
from autotune.executor import Executor
from autotune.executor.replay import ReplayExecutor
from autotune.executor.select import ExecutorInfo
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.search.budget import check_start
from autotune.search.observer import Observer
from autotune.search.proposals import make_proposals, most_in_flight
from autotune.search.recorder import Recorder
from autotune.search.result import Limits
from autotune.search.rotation import ImplementationStudy, reached_device
from autotune.search.sampler import Sampler
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, PriorPick, Trial


@dataclass(frozen=True, slots=True)
class Opening:
    """A search whose studies are open.

    Attributes:
        studies: one of each implementation that takes part, resumed.
        always: the candidates that are raced with a verdict or without one.
        ahead: those that were submitted already, in order.
        room: how many candidates are in flight at most.
    """

    studies: Sequence[ImplementationStudy]
    always: Sequence[Candidate]
    ahead: Sequence[Candidate]
    room: float


def open_search(
    recorders: Sequence[Recorder],
    neighbours: Mapping[str, Sequence[Config]],
    served: PriorPick | None,
    *,
    limits: Limits,
    sampler: Sampler,
    started: float,
    observer: Observer,
) -> Opening:
    """Resume from the store and open the studies; what they ask for first is compiled while spaces are listed.

    Raises:
        SearchError: nothing is known yet, and the budget cannot hold a search.
    """
    always = _raced_always(recorders, served)
    races = [each.resume(measured_fully=sampler == "exhaustive") for each in recorders]
    first = recorders[0]
    if not any(each.screened for each in recorders):
        elapsed = time.monotonic() - started
        short = check_start(first.operation, first.shape, first.executor, limits, elapsed=elapsed, defaults=len(always))
        if short:
            observer.on_short_budget(short)
    room = min(first.executor.capacity, most_in_flight(sampler))
    ahead = _submit_ahead(recorders, always, limits, room)
    studies = [
        _open_study(each, rows, sampler, always, neighbours.get(each.name, ()))
        for each, rows in zip(recorders, races, strict=True)
    ]
    return Opening(studies, always, ahead, room)


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


def skipped_implementations(
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
