"""Judges winners by those of one GPU: by the tie set of its race or, for one that was not in it, in one more race."""

from collections.abc import Sequence
from typing import Final

from autotune.executor.gpu import GpuExecutor
from autotune.table.winners import TIE_RATIO
from autotune.trial import Candidate
from autotune.workload import Workload
from benchmarks.many_gpus.tuned_grid import Study

RACE_SECONDS: Final = 1.0  # from when all are ready


def is_inside(work: Workload, one: Study, many: Study, executor: GpuExecutor) -> bool:
    """Return True if measurement cannot tell that a winner is slower than that of one GPU."""
    if one.winner is None or many.winner is None:
        return False
    ties = list(dict.fromkeys([one.winner, *one.ties]))
    if many.winner in ties:
        return True
    executor.open(*work)
    return ties_in_race(executor, ties, many.winner)


def ties_in_race(executor: GpuExecutor, ties: Sequence[Candidate], rival: Candidate) -> bool:
    """Race a winner against those of one GPU; False where none of these, or it itself, has a time."""
    race = executor.race([*ties, rival], seconds=RACE_SECONDS, baselines=[])  # a comparison of ours alone
    times = {each.candidate: each.timing for each in race.outcomes if each.timing is not None}
    fastest = min((times[each] for each in ties if each in times), key=lambda timing: timing.median_us, default=None)
    mine = times.get(rival)
    if mine is None or fastest is None:
        return False
    return mine.median_us <= fastest.median_us or (
        mine.overlaps(fastest) and mine.median_us <= TIE_RATIO * fastest.median_us
    )
