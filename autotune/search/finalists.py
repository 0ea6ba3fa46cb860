"""Choose the finalists of a search and race them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from autotune.executor import Baselines, DisturbedRaceError
from autotune.search.recorder import NO_VERDICT, Recorder, keep_race
from autotune.table import tie_set
from autotune.trial import Candidate, Status, Trial, median_us

FINALISTS: Final = 5  # of each implementation
SWEEP_FINALISTS: Final = 24  # a sweep is the ground truth of its shape: screening's order is not trusted far down
FINALIST_RATIO: Final = 1.10  # screening errs by a few percent; what is 10 % behind the best does not win a race
# The place, by screening, of the one whose time the ratio is taken of: a clock that had boosted after a pause, or a
# disturbed sample, makes one config look faster than it is, and must not shut all others out of the race. Where one
# config in 50 looked 25 % faster than it is, 12 of 60 searches from the space's default ended with that default, 1.153
# times the best, with the ratio taken of the first, and 2 with that of the third (replays of the sweep that an H200
# recorded of 2 x 8192, D = 128, full, 16 in flight, 2026-11-23; docs/search-efficiency.md).
CUT_PLACE: Final = 2


def choose_finalists(
    screened: Iterable[Trial],
    always: Sequence[Candidate],
    *,
    beside: Collection[Candidate] = (),
    count: int = FINALISTS,
    refuted: Collection[Candidate] = (),
) -> list[Candidate]:
    """Choose the fastest few of each implementation that are close to the third best, ``always``, and ``beside``.

    The fastest of each implementation is raced, however far behind: the winner's launch declines some calls, which the
    next implementation's winner is served for. What is served today and the defaults are ``always`` raced, with a
    verdict or without one, so that a search never ends with less than them; what is ``beside`` them once it was
    screened. None is raced whose screening failed: what hangs or crashes would take the others along. Candidates that
    an earlier race ``refuted`` are not raced again; where those are all of an implementation's fastest few, its next
    few are.
    """
    trials = list(screened)
    failed = {trial.candidate for trial in trials if trial.status not in (Status.OK, Status.SLOW)} | set(refuted)
    names = dict.fromkeys(trial.implementation for trial in trials)
    groups = [_fastest_standing(trials, name, failed, count) for name in names]
    standing = sorted((trial for group in groups for trial in group), key=rank)
    limit_us = FINALIST_RATIO * median_us(standing[min(CUT_PLACE, len(standing) - 1)]) if standing else 0.0
    close = [trial.candidate for trial in standing if median_us(trial) <= limit_us]
    known = {trial.candidate for trial in trials}
    first = [group[0].candidate for group in groups if group]
    others = [*first, *always, *(each for each in beside if standing and each in known)]
    return list(dict.fromkeys([*close, *(candidate for candidate in others if candidate not in failed)]))


def _fastest_standing(trials: Sequence[Trial], name: str, failed: Collection[Candidate], count: int) -> list[Trial]:
    """Return the first of an implementation's fastest, in groups of ``count``, that did not fail in whole."""
    timed = [trial for trial in trials if trial.implementation == name and trial.status is Status.OK and trial.timing]
    timed.sort(key=rank)
    groups = (timed[start : start + count] for start in range(0, len(timed), count))
    found = ([trial for trial in group if trial.candidate not in failed] for group in groups)
    return next((standing for standing in found if standing), [])


def race_finalists(
    recorders: Mapping[str, Recorder],
    rows: list[Trial],
    *,
    always: Sequence[Candidate],
    beside: Collection[Candidate],
    count: int,
    seconds_left: Callable[[], float],
    race_seconds: Callable[[], float],
    on_race: Callable[[Sequence[Candidate]], None],
    baselines: Baselines = "fastest",
) -> bool:
    """Race the finalists of what was screened unless ``rows`` hold their race, and add it; True if it is decided.

    Where a race refutes finalists, and others are close to the best then, those are raced while ``seconds_left``.
    """
    executor = next(iter(recorders.values())).executor
    screened = [trial for recorder in recorders.values() for trial in recorder.screened.values()]
    known = -1
    while True:
        refuted = {row.candidate for row in rows if row.status not in (Status.OK, *NO_VERDICT)}
        finalists = choose_finalists(screened, always, beside=beside, count=count, refuted=refuted)
        decided = is_decided(last_race(rows), finalists)
        if decided or len(refuted) == known or (known >= 0 and seconds_left() <= 0.0):
            return decided
        known = len(refuted)
        on_race(finalists)
        try:
            race = executor.race(finalists, seconds=race_seconds(), baselines=baselines)
        except DisturbedRaceError as error:
            rows += keep_race(error.race, recorders)
            raise
        rows += keep_race(race, recorders)


def is_decided(race: Sequence[Trial], finalists: Sequence[Candidate]) -> bool:
    """Return True if a race had these finalists and the GPU to itself, and came to a result (kept its worker)."""
    if any(trial.outcome.conditions.contended for trial in race):
        return False
    return {trial.candidate for trial in race} >= set(finalists) and (bool(tie_set(race)) or not finalists)


def last_race(rows: Sequence[Trial]) -> list[Trial]:
    newest = max((trial.race_id for trial in rows), default="")
    return [trial for trial in rows if trial.race_id == newest]


def rank(trial: Trial) -> tuple[float, str]:
    """Order by time; equal times by candidate, so that the order in which trials ended decides nothing."""
    return median_us(trial), str(trial.candidate)
