"""One search: ask, judge, remember, race, choose; what was acknowledged is on disk before more is asked."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from autotune.device import Device
from autotune.errors import SearchError
from autotune.executor import Executor
from autotune.operation import Operation
from autotune.search.convergence import Convergence
from autotune.search.finalists import FINALISTS, SWEEP_FINALISTS, last_race, race_finalists, rank
from autotune.search.proposals import DEFAULT_SAMPLER, Proposals, Sampler, make_proposals, most_in_flight
from autotune.search.recorder import Recorder
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store, tie_set, winners
from autotune.trial import Outcome, Status, Trial

RACE_SHARE: Final = 0.3  # of a budget in seconds
MIN_RACE_SECONDS, MAX_RACE_SECONDS = 2.0, 12.0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a search ends: configs that reached the device, and seconds from start to stored winner; None: no limit.

    With ``converge`` it also ends when a quarter of the valid configs was tried and the last 30 gained less than 1 %.
    """

    trials: int | None = None
    seconds: float | None = None
    converge: bool = False

    @property
    def race_seconds(self) -> float:
        """The part of the budget that the race may take."""
        if self.seconds is None:
            return MAX_RACE_SECONDS
        return min(max(self.seconds * RACE_SHARE, MIN_RACE_SECONDS), MAX_RACE_SECONDS)


class Ending(StrEnum):
    """Why a search stopped asking for configs."""

    EXHAUSTED = "every valid config was tried"
    TRIALS = "the budget of trials was spent"
    SECONDS = "only the race's part of the budget of time was left"
    CONVERGED = "it had converged"
    INTERRUPTED = "it was interrupted"


class Observer(Protocol):
    """Told what happens, as it happens; every trial it hears of is on disk; ``best`` is that of those resumed."""

    def on_start(
        self, operation: Operation[Any], shape: Shape, *, space: int, resumed: int, best: Trial | None
    ) -> None: ...

    def on_trial(self, trial: Trial) -> None: ...

    def on_race(self, configs: Sequence[Config]) -> None: ...


class Silent:
    """An observer that says nothing."""

    def on_start(
        self, operation: Operation[Any], shape: Shape, *, space: int, resumed: int, best: Trial | None
    ) -> None: ...

    def on_trial(self, trial: Trial) -> None: ...

    def on_race(self, configs: Sequence[Config]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """How a search ended. ``winner`` is None only if it was interrupted before a race.

    ``recorded`` are the verdicts that it rests on, one a config, and the winner's race; ``ties`` are those of that race
    that measurement cannot tell from it. ``is_decided``: the last race had the GPU to itself and all finalists of what
    was screened, and came to a result. ``contended`` counts the rows of this run that were timed while another process
    used the GPU, ``valid`` the configs that there are to try.
    """

    operation: Operation[Any]
    shape: Shape
    winner: Trial | None
    ties: tuple[Trial, ...] = ()
    best_screened: Trial | None
    statuses: dict[Status, int]
    valid: int
    measured: int
    resumed: int
    seconds: float
    ending: Ending
    recorded: tuple[Trial, ...] = ()
    is_decided: bool = True
    contended: int = 0

    @property
    def interrupted(self) -> bool:
        """Whether the caller stopped it: what was found until then stands."""
        return self.ending is Ending.INTERRUPTED


def search(
    operation: Operation[Any],
    shape: Shape,
    executor: Executor,
    store: Store,
    *,
    limits: Limits,
    seed: int = 0,
    served: Config | None = None,
    neighbours: Iterable[Config] = (),
    sampler: Sampler = DEFAULT_SAMPLER,
    observer: Observer | None = None,
    started: float | None = None,
) -> SearchResult:
    """Find the fastest correct config for a shape, and keep every trial in the store.

    The default is tried first, then the winners of neighbouring shapes, then what the study proposes. The best by
    screening are raced against the default, and the winner is chosen from the tie set. A second run resumes: what the
    store holds is not measured again.

    Args:
        limits: when to stop; the search also stops when every valid config was tried.
        served: what the tables serve for this shape today; tried second, and raced like the default.
        neighbours: winners of similar shapes, tried early.
        sampler: which proposals: ``exhaustive`` measures every valid config, in order.
        started: ``time.monotonic()`` at which the budget began to run; now by default.

    Raises:
        SearchError: not one config is valid and correct; the trials are in the store.
        UsageError: the operation does not support the shape.
    """
    started = time.monotonic() if started is None else started
    observer = observer or Silent()
    executor.open(operation, shape)  # before resuming: a replay's toolchain is that of the sweep it opens
    recorder = Recorder(operation, shape, executor, store, seed)
    rows = recorder.resume(measured_fully=sampler == "exhaustive")
    resumed, resumed_number = len(recorder.screened), recorder.number
    valid = list(operation.space.configs(shape, executor.device))
    if not valid:
        raise SearchError(_why_nothing_is_valid(operation, shape, executor.device))
    observer.on_start(operation, shape, space=len(valid), resumed=resumed, best=_best(recorder.screened.values()))
    proposals = make_proposals(
        sampler,
        operation.space,
        shape,
        executor.device,
        seed=seed,
        first=[recorder.default, *([served] if served else []), *neighbours],
        past=[trial.outcome for trial in recorder.screened.values()],
    )
    ending, is_decided = Ending.INTERRUPTED, False
    try:
        room = min(executor.capacity, most_in_flight(sampler))
        ending = _screen(recorder, proposals, limits, started, observer, valid=len(valid), room=room)
        if not recorder.screened:
            raise SearchError(_why_nothing_was_measured(limits))
        count = SWEEP_FINALISTS if sampler == "exhaustive" else FINALISTS
        is_decided = race_finalists(
            recorder,
            rows,
            served=served,
            count=count,
            seconds_left=lambda: _seconds_left(limits, started),
            race_seconds=lambda: _race_seconds(limits, started),
            on_race=observer.on_race,
        )
    except KeyboardInterrupt:
        ending = Ending.INTERRUPTED
    store.compact(operation.name, executor.device)
    found = winners(rows)
    race = [row for row in rows if found and row.race_id == found[0].race_id] or last_race(rows)
    if not found and ending is not Ending.INTERRUPTED:
        raise SearchError(_why_nothing(recorder.screened.values(), rows))
    new = [trial for trial in (*recorder.screened.values(), *rows) if trial.number > resumed_number]
    return SearchResult(
        operation=operation,
        shape=shape,
        winner=found[0] if found else None,
        ties=tuple(tie_set(race)),
        best_screened=_best(recorder.screened.values()),
        statuses=dict(Counter(trial.status for trial in recorder.screened.values())),
        valid=len(valid),
        measured=len(recorder.screened) - resumed,
        resumed=resumed,
        seconds=time.monotonic() - started,
        ending=ending,
        recorded=(*recorder.screened.values(), *race),
        is_decided=is_decided,
        contended=sum(trial.outcome.conditions.contended for trial in new),
    )


def _screen(
    recorder: Recorder,
    proposals: Proposals,
    limits: Limits,
    started: float,
    observer: Observer,
    *,
    valid: int,
    room: float,
) -> Ending:
    """Keep ``room`` configs in flight until a limit is reached or every config was tried; says which."""
    deadline = math.inf if limits.seconds is None else started + limits.seconds - limits.race_seconds
    reached = sum(_reached_device(trial.outcome) for trial in recorder.screened.values())
    past = sorted(recorder.screened.values(), key=lambda trial: trial.number)
    convergence = Convergence([trial.outcome for trial in past], valid)
    in_flight, ending = 0, None
    while True:
        while ending is None and in_flight < room:
            if limits.converge and convergence.is_reached:
                ending = Ending.CONVERGED
            elif limits.trials is not None and reached + in_flight >= limits.trials:
                break  # until one of those in flight turns out not to count
            elif (config := proposals.ask()) is None:
                ending = Ending.EXHAUSTED
            else:
                recorder.executor.submit(config)
                in_flight += 1
        if in_flight == 0 or ending is Ending.CONVERGED:
            return ending or Ending.TRIALS
        left = deadline - time.monotonic()
        outcome = recorder.executor.collect(None if left == math.inf else left) if left > 0 else None
        if outcome is None:  # what is in flight was not acknowledged, and is asked again by the next run
            return Ending.SECONDS
        in_flight -= 1
        reached += _reached_device(outcome)
        convergence.note(outcome)
        observer.on_trial(recorder.keep_screened(outcome))
        proposals.tell(outcome)


def _reached_device(outcome: Outcome) -> bool:
    """Whether a config was launched: only those count against a budget in trials."""
    refused = (Status.INVALID, Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.OUT_OF_RESOURCES)
    return outcome.status not in refused


def _race_seconds(limits: Limits, started: float) -> float:
    """What is left of the budget, at most the race's part, and never nothing."""
    return min(max(_seconds_left(limits, started), MIN_RACE_SECONDS / 2), limits.race_seconds)


def _seconds_left(limits: Limits, started: float) -> float:
    """Of the budget; without one, for ever."""
    return math.inf if limits.seconds is None else started + limits.seconds - time.monotonic()


def _best(screened: Iterable[Trial]) -> Trial | None:
    """The fastest by screening that was correct."""
    timed = (trial for trial in screened if trial.timing and trial.status is Status.OK)
    return min(timed, key=rank, default=None)


def _why_nothing_was_measured(limits: Limits) -> str:
    """What to say where the budget in seconds was over before the first verdict."""
    assert limits.seconds is not None
    kept = min(limits.seconds, limits.race_seconds)
    enough = math.ceil(3 * max(limits.seconds, MIN_RACE_SECONDS))  # leaves more than all of this one for measuring
    return (
        f"the budget of {limits.seconds:g} s ended before one config was measured, as {kept:g} s of it are kept for "
        f"the race; give it at least {enough} s"
    )


def _why_nothing_is_valid(operation: Operation[Any], shape: Shape, device: Device) -> str:
    """What to say where the space has no config for a shape: the reason against its default."""
    default = operation.space.default(shape, device)
    why = operation.space.why_invalid(default, shape, device)
    return f"no config of {operation.name} is valid for {shape} on {device.name}; of the default: {why}"


def _why_nothing(screened: Iterable[Trial], rows: Sequence[Trial]) -> str:
    """What to say when no config survived: the statuses, and one message."""
    trials = [*screened, *rows]
    counts = ", ".join(f"{count} {status}" for status, count in Counter(t.status for t in trials).items())
    example = next((trial.outcome.message for trial in trials if trial.outcome.message), "")
    return f"no config is valid and correct here ({counts or 'none was tried'}); for example: {example or 'no message'}"
