"""The parent's side of a race: finalists are raced until all that remain come to the end of it together."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, get_args

from autotune.errors import SearchError, UnknownNameError
from autotune.executor import BaselineResult, Baselines, Choice, Race, is_comparison
from autotune.executor.child import ChildDiedError
from autotune.executor.messages import Entrant, FromWorker, RaceFailed, RunRace, WorkingOn
from autotune.executor.worker_keeper import LOST, WorkerKeeper
from autotune.trial import Candidate, Outcome, Status

SETUP_SECONDS: Final = 180.0  # while no entrant runs: the reference of the full shape in fp64
BASELINE_SECONDS: Final = 180.0  # at a baseline's turn: some compile for a minute and more


@dataclass(frozen=True, slots=True)
class _Field:
    """The candidates and baselines that are still in a race, and those that are out of it, with the reason."""

    candidates: tuple[Candidate, ...]
    baselines: Baselines
    lost: tuple[Outcome, ...] = ()
    lost_baselines: tuple[BaselineResult, ...] = ()

    def without(self, entrant: Entrant, failure: RaceFailed) -> "_Field":
        """Return what is left once an entrant has ended the race: a finalist, a baseline, or at no one's turn."""
        if isinstance(entrant, int):
            guilty = self.candidates[entrant]
            verdict = Outcome(candidate=guilty, status=failure.status, message=failure.message)
            rest = tuple(candidate for candidate in self.candidates if candidate != guilty)
            return replace(self, candidates=rest, lost=(*self.lost, verdict))
        if self.baselines == "none":
            raise SearchError(f"the race failed while no finalist ran: {failure.status}: {failure.message}")
        if entrant is None:
            return replace(self, baselines="none")
        result = BaselineResult(entrant, message=failure.message)
        return replace(self, lost_baselines=(*self.lost_baselines, result))

    def complete(self, found: Race, candidates: list[Candidate]) -> Race:
        """Put those that are out beside those that came to the end, in the order of ``candidates``."""
        outcomes = {outcome.candidate: outcome for outcome in (*self.lost, *found.outcomes)}
        extra = dict(zip(self.candidates, found.extra_bytes, strict=True)) if found.extra_bytes else {}
        return Race(
            outcomes=tuple(outcomes[candidate] for candidate in candidates),
            baselines=(*found.baselines, *self.lost_baselines),
            extra_bytes=tuple(extra.get(candidate) for candidate in candidates) if extra else (),
        )


def race_with_recovery(
    workers: WorkerKeeper,
    candidates: list[Candidate],
    *,
    seconds: float,
    baselines: Baselines,
    patience: Callable[[Candidate], float],
    refused: Sequence[Outcome] = (),
) -> Race:
    """Race these candidates; one that takes the worker along is blamed, and the others are raced again without it.

    The worker announces each step, so the one is known. Where it was a baseline's, all are raced again without it;
    where it was no one's, without baselines: no finalist is blamed for that. The others get what is left of
    ``seconds``, in a comparison all of them, since what was sampled is lost. Each loss takes one candidate or baseline
    away, or all baselines, so that the whole ends.

    The worker hangs when it is silent at one step for too long; steps are finitely many, so a worker that is stuck is
    found. The whole race has no limit here: a least number of rounds takes as long as the shape is slow.

    Args:
        patience: for how many seconds the worker may be silent at a candidate's turn; at a baseline's these are
            ``BASELINE_SECONDS``, at no one's ``SETUP_SECONDS``.
        refused: verdicts on those of the candidates that are out of the race from the start.

    Raises:
        UnknownNameError: ``baselines`` is another text, such as one name by itself.
        MissingDependencyError: the GPU or the compilers do not work.
        SearchError: the worker cannot make the problem's inputs, or the race was lost at no one's turn again.
    """
    if isinstance(baselines, str) and baselines not in get_args(Choice):
        allowed = f"{', '.join(get_args(Choice))}, or a list of names"
        raise UnknownNameError(f"baselines={baselines!r} is unknown; allowed: {allowed}")
    ends = math.inf if is_comparison(baselines) else time.monotonic() + seconds
    out = {outcome.candidate for outcome in refused}
    entrants = tuple(candidate for candidate in candidates if candidate not in out)
    field, left = _Field(entrants, baselines, lost=tuple(refused)), seconds
    while field.candidates:
        found, entrant = _race_once(workers, field, left, patience)
        if isinstance(found, Race):
            return field.complete(found, candidates)
        field = field.without(entrant, found)
        left = min(seconds, max(0.0, ends - time.monotonic()))
    return field.complete(Race(()), candidates)


def _race_once(
    workers: WorkerKeeper, field: _Field, seconds: float, patience: Callable[[Candidate], float]
) -> tuple[Race | RaceFailed, Entrant]:
    """Return a race that came to its end; or how it failed, and at whose turn."""
    names = field.baselines if isinstance(field.baselines, str) else tuple(field.baselines)
    request = RunRace(field.candidates, seconds, names, tuple(result.name for result in field.lost_baselines))
    workers.await_ready()
    while not workers.ask(request):
        workers.await_ready()
    entrant: Entrant = None
    while True:
        if isinstance(entrant, int):
            wait = patience(field.candidates[entrant])
        else:
            wait = SETUP_SECONDS if entrant is None else BASELINE_SECONDS
        match _receive(workers, wait):
            case WorkingOn(entrant):
                continue
            case Race() | RaceFailed() as end:
                if isinstance(end, RaceFailed) and end.status in LOST:
                    workers.lose()
                return end, entrant


def _receive(workers: WorkerKeeper, wait: float) -> FromWorker:
    """Return the worker's next message; its death or silence is the end of the race."""
    try:
        return workers.receive(wait) or RaceFailed(Status.HANG, f"the race stood still for {wait:g} s")
    except KeyboardInterrupt:
        workers.lose()  # its answer would be taken for that to a later request
        raise
    except ChildDiedError as error:
        return RaceFailed(Status.WORKER_DIED, str(error))
