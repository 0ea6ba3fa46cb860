"""Who is raced at the end of a search, and until when."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from autotune.search.recorder import NO_VERDICT, Recorder
from autotune.space import Config
from autotune.table import tie_set
from autotune.trial import Status, Trial

FINALISTS: Final = 5
SWEEP_FINALISTS: Final = 24  # a sweep is the ground truth of its shape: screening's order is not trusted far down
FINALIST_RATIO: Final = 1.10  # screening errs by a few percent; what is 10 % behind the best does not win a race


def choose_finalists(
    screened: Iterable[Trial],
    default: Config,
    *,
    served: Config | None = None,
    count: int = FINALISTS,
    refuted: Collection[Config] = (),
) -> list[Config]:
    """The fastest few by screening that are close to the best, the default, and what is served today.

    These two are in every race unless their screening failed: what hangs or crashes would take the others along. What
    an earlier race ``refuted`` is not raced again; where that is all of the fastest few, the next few are.
    """
    trials = list(screened)
    failed = {trial.config for trial in trials if trial.status not in (Status.OK, Status.SLOW)} | set(refuted)
    timed = sorted((trial for trial in trials if trial.status is Status.OK and trial.timing), key=rank)
    standing: list[Trial] = []
    while timed and not standing:
        standing = [trial for trial in timed[:count] if trial.config not in failed]
        timed = timed[count:]
    if not standing:
        return [] if default in failed else [default]
    bound = FINALIST_RATIO * _median(standing[0])
    close = [trial.config for trial in standing if _median(trial) <= bound]
    tried = {trial.config for trial in trials}
    always = [default, *([served] if served in tried else [])]
    return list(dict.fromkeys([*close, *(config for config in always if config not in failed)]))


def race_finalists(
    recorder: Recorder,
    rows: list[Trial],
    *,
    served: Config | None,
    count: int,
    seconds_left: Callable[[], float],
    race_seconds: Callable[[], float],
    on_race: Callable[[Sequence[Config]], None],
) -> bool:
    """Race the finalists of what was screened unless ``rows`` hold their race, and add it; says whether it is decided.

    Where a race refutes finalists, and others are close to the best then, those are raced while ``seconds_left``.
    """
    known = -1
    while True:
        refuted = {row.config for row in rows if row.status not in (Status.OK, *NO_VERDICT)}
        screened = recorder.screened.values()
        finalists = choose_finalists(screened, recorder.default, served=served, count=count, refuted=refuted)
        decided = is_decided(last_race(rows), finalists)
        if decided or len(refuted) == known or (known >= 0 and seconds_left() <= 0.0):
            return decided
        known = len(refuted)
        on_race(finalists)
        rows += recorder.keep_race(recorder.executor.race(finalists, seconds=race_seconds()))


def is_decided(race: Sequence[Trial], finalists: Sequence[Config]) -> bool:
    """Whether a race had all these finalists, the GPU to itself, and came to a result (not if it lost its worker)."""
    if any(trial.outcome.conditions.contended for trial in race):
        return False
    return {trial.config for trial in race} >= set(finalists) and (bool(tie_set(race)) or not finalists)


def last_race(rows: Sequence[Trial]) -> list[Trial]:
    newest = max((trial.race_id for trial in rows), default="")
    return [trial for trial in rows if trial.race_id == newest]


def rank(trial: Trial) -> tuple[float, str]:
    """By time; equal times by config, so that the order in which trials ended decides nothing."""
    return _median(trial), str(trial.config)


def _median(trial: Trial) -> float:
    assert trial.timing is not None
    return trial.timing.median_us
