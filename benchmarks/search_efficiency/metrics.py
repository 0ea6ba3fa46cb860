"""Metrics of traces: regret, the exact random search, Kernel Tuner's P score, bootstrap intervals.

A trace is the indices of distinct configs in the order of their evaluation; times are NaN where a config failed. A
failure counts as the slowest time of its sweep, for samplers and for the random baseline alike.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CUTOFF: Final = 0.95  # of the way from the median to the optimum
RESAMPLES: Final = 2000


class Interval(NamedTuple):
    """A mean and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def best_so_far(times: Floats, trace: Sequence[int], count: int) -> Floats:
    """Return the best time after 1 to ``count`` evaluations; a trace that ends earlier keeps its last."""
    filled = _filled(times)
    best = np.full(count + 1, np.max(filled))
    best[1 : len(trace) + 1] = filled[np.asarray(trace[:count], dtype=np.int64)]
    return np.asarray(np.minimum.accumulate(best)[1:], dtype=np.float64)


def regret(times: Floats, best: Floats) -> Floats:
    """Return the times' distance from the sweep's best, as a fraction of it."""
    return best / np.nanmin(times) - 1.0


def expected_best(times: Floats) -> Floats:
    """Return the expected best time of k draws without replacement, exactly, for k from 1 to all."""
    ordered = np.sort(_filled(times))
    count = len(ordered)
    ranks = np.arange(1, count)  # the best of k is beyond rank r with the chance that no draw is among the r best
    beyond = np.ones(count - 1)
    expected = np.empty(count)
    for drawn in range(count):
        beyond = beyond * np.maximum(count - ranks - drawn, 0) / (count - drawn)
        expected[drawn] = ordered[0] + np.sum(np.diff(ordered) * beyond)
    return expected


class RandomSearch:
    """Random search on a sweep, exactly: the zero of the P score.

    ``expected`` is ``expected_best``; ``budget`` is the number of evaluations after which it is 95 % of the way from
    the median to the optimum.
    """

    def __init__(self, times: Floats) -> None:
        self._times, self._optimum = times, float(np.nanmin(times))
        self.expected = expected_best(times)
        threshold = np.nanmedian(times) - CUTOFF * (np.nanmedian(times) - self._optimum)
        reached = 1 + int(np.argmax(self.expected <= threshold))
        self.budget = min(reached, len(times) - 1)  # with every config drawn nothing is left to win

    def p_score(self, trace: Sequence[int]) -> float:
        """Return Kernel Tuner's score (arXiv 2509.26300): 0 is random search, 1 finds the optimum at once.

        Budgets are numbers of evaluations, every one up to ``budget``.
        """
        baseline, found = self.expected[: self.budget], best_so_far(self._times, trace, self.budget)
        return float(np.mean((baseline - found) / (baseline - self._optimum)))


def evaluations(size: int, fraction: float) -> int:
    """Return the evaluations that a fraction of a space's valid configs is, rounded up."""
    return max(1, math.ceil(fraction * size - 1e-9))


def pick_sweeps(sweeps: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Draw the sweeps of each bootstrap resample, once for all samplers, whose differences are then paired."""
    return np.random.default_rng(seed).integers(0, sweeps, (RESAMPLES, sweeps))


def bootstrap(groups: Sequence[Floats], picks: NDArray[np.int64], *, seed: int = 1) -> Floats:
    """Return means of resamples over sweeps, by ``picks``, and over the seeds within each; a group is one sweep's."""
    generator = np.random.default_rng(seed)
    means = [group[generator.integers(0, len(group), (*picks.shape, len(group)))].mean(axis=-1) for group in groups]
    resampled = np.take_along_axis(np.stack(means, axis=-1), picks[..., None], axis=-1)
    return np.asarray(resampled[..., 0].mean(axis=1), dtype=np.float64)


def interval(mean: float, resamples: Floats) -> Interval:
    low, high = np.percentile(resamples, (2.5, 97.5))
    return Interval(mean, float(low), float(high))


def _filled(times: Floats) -> Floats:
    return np.where(np.isnan(times), np.nanmax(times), times)
