"""Choose the finalists of a search and race them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from autotune.search.recorder import NO_VERDICT, Recorder, keep_race
from autotune.table import tie_set
from autotune.trial import Candidate, Status, Trial, median_us

FINALISTS: Final = 5  # of each implementation
SWEEP_FINALISTS: Final = 24  # a sweep is the ground truth of its shape: screening's order is not trusted far down
FINALIST_RATIO: Final = 1.10  # screening errs by a few percent; what is 10 % behind the best does not win a race


def choose_finalists(
    screened: Iterable[Trial],
    defaults: Sequence[Candidate],
    *,
    beside: Collection[Candidate] = (),
    count: int = FINALISTS,
    refuted: Collection[Candidate] = (),
) -> list[Candidate]:
    """Choose the fastest few of each implementation that are close to the best of all, the defaults, and ``beside``.

    Defaults, and what is to be measured beside once it was screened, are in every race unless their screening failed:
    what hangs or crashes would take the others along. Candidates that an earlier race ``refuted`` are not raced again;
    where those are all of an implementation's fastest few, its next few are.
    """
    trials = list(screened)
    failed = {trial.candidate for trial in trials if trial.status not in (Status.OK, Status.SLOW)} | set(refuted)
    names = dict.fromkeys(trial.implementation for trial in trials)
    standing = [trial for name in names for trial in _fastest_standing(trials, name, failed, count)]
    standing.sort(key=rank)
    close = [trial.candidate for trial in standing if median_us(trial) <= FINALIST_RATIO * median_us(standing[0])]
    always = list(defaults)
    if standing:
        always += [each for each in beside if each in {trial.candidate for trial in trials}]
    return list(dict.fromkeys([*close, *(candidate for candidate in always if candidate not in failed)]))


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
    beside: Collection[Candidate],
    count: int,
    seconds_left: Callable[[], float],
    race_seconds: Callable[[], float],
    on_race: Callable[[Sequence[Candidate]], None],
) -> bool:
    """Race the finalists of what was screened unless ``rows`` hold their race, and add it; True if it is decided.

    Where a race refutes finalists, and others are close to the best then, those are raced while ``seconds_left``.
    """
    executor = next(iter(recorders.values())).executor
    screened = [trial for recorder in recorders.values() for trial in recorder.screened.values()]
    defaults = [recorder.candidate(recorder.default) for recorder in recorders.values()]
    known = -1
    while True:
        refuted = {row.candidate for row in rows if row.status not in (Status.OK, *NO_VERDICT)}
        finalists = choose_finalists(screened, defaults, beside=beside, count=count, refuted=refuted)
        decided = is_decided(last_race(rows), finalists)
        if decided or len(refuted) == known or (known >= 0 and seconds_left() <= 0.0):
            return decided
        known = len(refuted)
        on_race(finalists)
        rows += keep_race(executor.race(finalists, seconds=race_seconds()), recorders)


def is_decided(race: Sequence[Trial], finalists: Sequence[Candidate]) -> bool:
    """True if a race had all these finalists, the GPU to itself, and came to a result (not if it lost its worker)."""
    if any(trial.outcome.conditions.contended for trial in race):
        return False
    return {trial.candidate for trial in race} >= set(finalists) and (bool(tie_set(race)) or not finalists)


def last_race(rows: Sequence[Trial]) -> list[Trial]:
    newest = max((trial.race_id for trial in rows), default="")
    return [trial for trial in rows if trial.race_id == newest]


def rank(trial: Trial) -> tuple[float, str]:
    """Order by time; equal times by candidate, so that the order in which trials ended decides nothing."""
    return median_us(trial), str(trial.candidate)
