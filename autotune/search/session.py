"""One search: ask, judge, remember, race, choose; what was acknowledged is on disk before more is asked."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.errors import SearchError
from autotune.executor import Executor
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.registry import our_implementations
from autotune.search.finalists import FINALISTS, SWEEP_FINALISTS, choose_finalists, last_race, race_finalists
from autotune.search.observer import Observer
from autotune.search.opening import Opening, open_search, skipped_implementations
from autotune.search.recorder import Recorder
from autotune.search.result import MIN_RACE_SECONDS, Ending, ImplementationResult, Limits, SearchResult
from autotune.search.rotation import START_UP_SECONDS, ImplementationStudy, Rotation, best_of
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
    skipped = skipped_implementations(operation, wanted, shape, executor)
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
    opening = open_search(
        recorders, neighbours or {}, served, limits=limits, sampler=sampler, started=started, observer=observer
    )
    session = _Session(opening, limits, sampler, started, observer)
    session.tell_start(skipped)
    try:
        ending = session.screen()
        session.race(served)
    except KeyboardInterrupt:
        ending = Ending.INTERRUPTED
    try:
        store.compact(operation.name, executor.device)
        return session.result(ending, skipped)
    except KeyboardInterrupt:  # what was found is stored, and the next run compacts
        return session.result(Ending.INTERRUPTED, skipped)


class _Session:
    """The steps of a search whose studies are open, in their order, and what they share."""

    def __init__(self, opening: Opening, limits: Limits, sampler: Sampler, started: float, observer: Observer) -> None:
        self._opening, self._limits, self._started, self._observer = opening, limits, started, observer
        self._is_sweep = sampler == "exhaustive"
        self._studies = opening.studies
        self._recorders = [study.recorder for study in opening.studies]
        self._beside = [each.candidate(config) for each in self._recorders for config in each.heuristics]
        self._rows = [row for study in opening.studies for row in study.races]
        self._is_decided = False
        self._stages: dict[str, float] = {}

    def tell_start(self, skipped: Mapping[str, str]) -> None:
        """Tell the observer what is searched, what is known of it, and what is left out."""
        known, first = self._screened(), self._recorders[0]
        valid = {study.name: study.valid for study in self._studies}
        self._observer.on_start(first.operation, first.shape, valid=valid, resumed=len(known), best=best_of(known))
        for name, reason in skipped.items():
            self._observer.on_skipped(name, reason)
        self._note_stage("listed", time.monotonic())

    def screen(self) -> Ending:
        """Let the studies take turns until a limit is reached or nothing is left; return which it was."""
        opening, finalists = self._opening, None if self._is_sweep else self._finalists
        rotation = Rotation(
            self._studies,
            self._limits,
            self._started,
            self._observer,
            room=opening.room,
            ahead=opening.ahead,
            finalists=finalists,
        )
        ending = rotation.run()
        if rotation.first_verdict is not None:
            self._note_stage("first_measured", rotation.first_verdict)
        self._note_stage("screened", time.monotonic())
        return ending

    def race(self, served: PriorPick | None) -> None:
        """Race the finalists of what was screened; SearchError where nothing was."""
        raced = _require_measured(self._studies, self._limits, served)
        self._is_decided = race_finalists(
            raced,
            self._rows,
            always=[each for each in self._opening.always if each.implementation in raced],
            beside=self._beside,
            count=SWEEP_FINALISTS if self._is_sweep else FINALISTS,
            seconds_left=self._seconds_left,
            race_seconds=self._race_seconds,
            on_race=self._observer.on_race,
        )

    def result(self, ending: Ending, skipped: Mapping[str, str]) -> SearchResult:
        """Choose the winner, and sum up; SearchError where nothing may win, unless the search was interrupted."""
        screened, rows = self._screened(), self._rows
        found = ranked(winners(rows))
        if not found and ending is not Ending.INTERRUPTED:
            raise SearchError(_why_nothing([*screened, *rows]))
        race = [row for row in rows if found and row.race_id == found[0].race_id] or last_race(rows)
        new = [trial for trial in (*screened, *rows) if any(study.is_new(trial) for study in self._studies)]
        left_out = (
            ImplementationResult(implementation=name, skipped=why, statuses={}) for name, why in skipped.items()
        )
        return SearchResult(
            operation=self._recorders[0].operation,
            shape=self._recorders[0].shape,
            winner=next(iter(found), None),
            ties=tuple(tie_set(race)),
            best_screened=best_of(screened),
            implementations=(*(study.result() for study in self._studies), *left_out),
            ending=ending,
            recorded=(*screened, *race),
            is_decided=self._is_decided,
            contended=sum(trial.outcome.conditions.contended for trial in new),
            stages=self._stages,
            seconds=time.monotonic() - self._started,
        )

    def _screened(self) -> list[Trial]:
        return [trial for each in self._recorders for trial in each.screened.values()]

    def _finalists(self) -> list[Candidate]:
        return choose_finalists(self._screened(), self._opening.always, beside=self._beside)

    def _note_stage(self, name: str, moment: float) -> None:
        self._stages[name] = moment - self._started

    def _seconds_left(self) -> float:
        return math.inf if self._limits.seconds is None else self._started + self._limits.seconds - time.monotonic()

    def _race_seconds(self) -> float:
        """Return what is left of the budget, at most the race's part, and never nothing."""
        return min(max(self._seconds_left(), MIN_RACE_SECONDS / 2), self._limits.race_seconds)


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


def _why_nothing(trials: Sequence[Trial]) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in Counter(t.status for t in trials).items())
    example = next((trial.outcome.message for trial in trials if trial.outcome.message), "")
    return f"no config is valid and correct here ({counts or 'none was tried'}); for example: {example or 'no message'}"
