"""A Gaussian process over a finite set of points, which predicts configs from those that were measured."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import threadpoolctl
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

MODELS: Final = 5  # hyperparameters that are averaged over: few observations leave many plausible
DRAWS: Final = 30  # random hyperparameters tried at first, and a third of them at every later fit
MUTATIONS: Final = 12  # variations of the best ones tried at every later fit
WEIGHT_SPREAD: Final = 1.5  # of the log-normal prior of inverse squared length scales, for features within [0, 1]
NOISE: Final = (1e-4, 1e-1)  # of the signal's variance; timing noise and what the features cannot tell
RELEARN: Final = 1.05  # growth of the observations that is worth another search: it costs five predictions
MIN_VARIANCE: Final = 1e-12


@cache
def _blas_threads() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


class Hyperparameters(NamedTuple):
    """Inverse squared length scale of each feature, and the noise as a share of the signal's variance."""

    weights: Array
    noise: float


class _Fit(NamedTuple):
    score: float
    hyperparameters: Hyperparameters
    factor: Array  # Cholesky factor of the kernel matrix
    whitened: Array  # factor \ observations
    variance: float


class GaussianProcess:
    """Regression with a Matern-5/2 kernel, one length scale a feature (Rasmussen and Williams 2006, chapters 2, 4, 5).

    ``learn`` searches hyperparameters at random, from those that it found before; ``predict`` averages the best few,
    weighted by their posterior probability.

    Args:
        points: all points ``[n, features]``, each feature within [0, 1].
    """

    def __init__(self, points: Array, random: np.random.Generator) -> None:
        self._points = points
        self._random = random
        self._known: list[Hyperparameters] = []
        self._learned_from = 0

    def learn(self, seen: Sequence[int], values: Array) -> None:
        """Fit to the values observed at points of these indices, unless there are hardly more than at the last time."""
        if len(seen) < RELEARN * self._learned_from:
            return
        self._learned_from = len(seen)
        with _blas_threads().limit(limits=1, user_api="blas"):
            fits = self._fits(self._points[list(seen)], values - values.mean(), self._candidates(self._points.shape[1]))
        self._known = [fit.hyperparameters for fit in fits[:MODELS]]

    def predict(self, seen: Sequence[int], values: Array, wanted: Indices) -> list[tuple[float, Array, Array]]:
        """Return the weight of each model, and its mean and standard deviation at the points ``wanted``.

        All points are given by their indices; ``values`` were observed at ``seen``. ``learn`` comes first.
        """
        points, mean = self._points[list(seen)], float(values.mean())
        with _blas_threads().limit(limits=1, user_api="blas"):
            fits = self._fits(points, values - mean, self._known)
            probabilities = np.exp(np.array([fit.score - fits[0].score for fit in fits]))
            return [
                (float(weight), *_predict(fit, points, self._points[wanted], mean))
                for weight, fit in zip(probabilities / probabilities.sum(), fits, strict=True)
            ]

    def _fits(self, points: Array, values: Array, candidates: Sequence[Hyperparameters]) -> list[_Fit]:
        """Return a fit for each of the hyperparameters that are well-conditioned, the most probable first."""
        fits = [_fit(points, values, candidate) for candidate in candidates]
        return sorted((fit for fit in fits if fit is not None), key=lambda fit: fit.score, reverse=True)

    def _candidates(self, features: int) -> list[Hyperparameters]:
        fresh = []
        for _ in range(DRAWS if not self._known else DRAWS // 3):
            weights = np.exp(self._random.normal(0.0, WEIGHT_SPREAD, features))
            fresh.append(Hyperparameters(weights, float(np.exp(self._random.uniform(*np.log(NOISE))))))
        varied = [
            Hyperparameters(
                known.weights * np.exp(self._random.normal(0.0, 0.6, features)),
                float(np.clip(known.noise * np.exp(self._random.normal(0.0, 0.7)), *NOISE)),
            )
            for known in self._known[:3]
            for _ in range(MUTATIONS // 3)
        ]
        return [*self._known, *varied, *fresh]


def _fit(points: Array, values: Array, hyperparameters: Hyperparameters) -> _Fit | None:
    """Return the log posterior of hyperparameters at the best signal variance; None if ill-conditioned."""
    count = len(values)
    matrix = _kernel(hyperparameters.weights, points, points) + hyperparameters.noise * np.eye(count)
    try:
        factor: Array = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    whitened = np.linalg.solve(factor, values)
    variance = max(float(whitened @ whitened) / count, 1e-6)
    likelihood = -0.5 * count * np.log(variance) - np.log(np.diag(factor)).sum()
    prior = -0.5 * (np.log(hyperparameters.weights) ** 2).sum() / WEIGHT_SPREAD**2
    return _Fit(float(likelihood + prior), hyperparameters, factor, whitened, variance)


def expected_improvement(best: float, mean: Array, deviation: Array) -> Array:
    """Return the expected fall of a normal variable below ``best`` (Jones, Schonlau and Welch 1998, equation 15)."""
    z = (best - mean) / deviation
    improvement: Array = (best - mean) * _normal_distribution(z) + deviation * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    return improvement


def _predict(fit: _Fit, points: Array, wanted: Array, mean: float) -> tuple[Array, Array]:
    """Return the mean and the standard deviation at the points ``wanted``, in single precision.

    The noise of a fit hides what that rounds off, and thousands of points take a fifth of the time.
    """
    kernel = _kernel(fit.hyperparameters.weights, points, wanted, np.float32)
    projected = np.linalg.inv(fit.factor).astype(np.float32) @ kernel
    explained = np.square(projected).sum(axis=0)
    deviation = np.sqrt(np.maximum(fit.variance * (1.0 - explained), MIN_VARIANCE))
    return fit.whitened @ projected + mean, deviation


def _kernel(weights: Array, a: Array, b: Array, dtype: type[np.floating[Any]] = np.float64) -> Array:
    """Return the correlations ``[len(a), len(b)]`` of points by their weighted distances, made in one place."""
    scale = np.sqrt(5.0 * weights)
    a, b = (scale * a).astype(dtype), (scale * b).astype(dtype)
    root = a @ (-2.0 * b.T)
    root += np.square(a).sum(axis=1)[:, None]
    root += np.square(b).sum(axis=1)
    np.sqrt(np.maximum(root, 0.0, out=root), out=root)  # rounding may leave equal points a distance below zero
    kernel: Array = root / 3.0
    kernel += 1.0
    kernel *= root
    kernel += 1.0
    kernel *= np.exp(np.negative(root, out=root), out=root)
    return kernel


def _normal_distribution(z: Array) -> Array:
    """Return the standard normal distribution function, to 7.5e-8 (Abramowitz and Stegun 1964, 26.2.17)."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = series * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    return np.where(z > 0, 1.0 - tail, tail)
