"""The regret of a search in its own order, and of random search on a sweep, exactly."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.lab.report.screening import Screening, judged_seconds, median_us
from autotune.trial import Status, Trial

POINTS: Final = 60  # of a curve: more than its pixels tell apart
QUANTILES: Final = (0.05, 0.5, 0.95)


@dataclass(frozen=True, slots=True)
class Curve:
    """Regret over effort: the time of the best so far over the best of all, less 1; ``inf`` before any ran.

    ``low`` and ``high`` are the 5th and 95th percentiles of random orders; a single search has the median alone.
    """

    effort: tuple[float, ...]
    median: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Regret:
    """The two curves of a screening, against trials and against seconds; ``is_random``: of random orders of a sweep."""

    by_trials: Curve
    by_seconds: Curve
    is_random: bool


def regret(screening: Screening) -> Regret | None:
    """Return the regret of a screening; None where fewer than two configs have a time.

    A search is shown in the order in which it tried configs. A sweep has no such order: instead the regret of a random
    search after as many trials is computed exactly, each trial of the mean cost.
    """
    if screening.best is None or len(screening.timed) < 2:
        return None
    times = [median_us(trial) if trial.timing and trial.status is Status.OK else math.inf for trial in screening.trials]
    best = median_us(screening.best)
    if screening.is_sweep:
        by_trials = random_order(np.array(times) / best - 1.0)
        cost = float(np.mean([judged_seconds(trial) for trial in screening.trials]))
        by_seconds = replace(by_trials, effort=tuple(drawn * cost for drawn in by_trials.effort))
    else:
        values = (np.minimum.accumulate(times) / best - 1.0).tolist()
        by_trials = Curve(tuple(range(1, len(values) + 1)), tuple(values))
        by_seconds = replace(by_trials, effort=elapsed_seconds(screening.trials))
    return Regret(by_trials, by_seconds, is_random=screening.is_sweep)


def random_order(values: NDArray[np.float64]) -> Curve:
    """Return percentiles of the least of ``n`` values drawn without replacement, in closed form, for ``n`` up to all.

    All of ``n`` draws of ``N`` values are beyond the ``k`` smallest with probability ``C(N-k, n) / C(N, n)``.

    Example:
        >>> random_order(np.array([0.0, 1.0])).median
        (0.0, 0.0)
    """
    ordered, total = np.sort(values), len(values)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])  # of factorials
    drawn = sorted({round(total ** (step / POINTS)) for step in range(POINTS + 1)})
    percentiles = []
    for count in drawn:
        left = np.arange(total)[::-1]  # beyond the best k values, for each k from 1
        chance = np.exp(logs[left] - logs[np.maximum(left - count, 0)] - logs[total] + logs[total - count])
        chance[left < count] = 0.0
        # the least value whose rank is reached with at least that probability; rounding must not lose the last
        ranks = [min(int(np.searchsorted(1.0 - chance, quantile - 1e-12)), total - 1) for quantile in QUANTILES]
        percentiles.append([float(ordered[rank]) for rank in ranks])
    low, median, high = zip(*percentiles, strict=True)
    return Curve(tuple(float(count) for count in drawn), median, low, high)


def elapsed_seconds(trials: Sequence[Trial]) -> tuple[float, ...]:
    """Return the seconds from the start of a search to each verdict, pauses between two runs left out.

    A replay takes next to no time: the cost of its recording is used instead.
    """
    total, seconds = 0.0, []
    for before, trial in zip([None, *trials], trials, strict=False):
        if before is None or trial.worker != before.worker or trial.executor == "replay":
            total += judged_seconds(trial)
        else:
            total += (trial.started_at - before.started_at).total_seconds()
        seconds.append(total)
    return tuple(seconds)
