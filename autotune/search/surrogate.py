"""A Gaussian process over a finite set of points, which predicts configs from those that were measured."""

import itertools
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
MAX_KEPT: Final = 4096  # points of which predictions are kept: 4 bytes for each of them, each seen and each model


@cache
def _blas_threads() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


class Hyperparameters(NamedTuple):
    """Inverse squared length scale of each feature, and the noise as a share of the signal's variance."""

    weights: Array
    noise: float


class _Fit(NamedTuple):
    score: float
    model: "_Model"
    factor: Array  # Cholesky factor of the kernel matrix
    whitened: Array  # factor \ observations
    variance: float


class _Model:
    """Hyperparameters, and what of their predictions is alike from one to the next.

    That is the inverse of the factor times the kernel, ``[seen, domain]``: a point that is seen beside those before
    adds a row and changes none. It is in single precision, for the sake of time: what is rounded off is less than the
    noise that each model assumes, but for deviations at the very points that were measured, which are not asked for.
    """

    def __init__(self, hyperparameters: Hyperparameters) -> None:
        self.hyperparameters = hyperparameters
        self._seen: list[int] = []
        self._domain: Indices = np.empty(0, np.int64)
        self._rows: Array = np.empty((0, 0), np.float32)

    def project(self, factor: Array, points: Array, seen: Sequence[int], domain: Indices) -> Array:
        """Return that between the points of these indices; the rows of what ``seen`` begins with as before are kept."""
        if not np.array_equal(domain, self._domain):
            self._seen, self._domain, self._rows = [], domain, np.empty((0, len(domain)), np.float32)
        same = (mine == given for mine, given in zip(self._seen, seen, strict=False))
        count = sum(itertools.takewhile(bool, same))
        new = _kernel(self.hyperparameters.weights, points[seen[count:]], points[domain], np.float32)
        new -= factor[count:, :count].astype(np.float32) @ self._rows[:count]
        new = np.linalg.inv(factor[count:, count:]).astype(np.float32) @ new
        self._seen, self._rows = list(seen), np.concatenate([self._rows[:count], new])
        return self._rows


class GaussianProcess:
    """Regression with a Matern-5/2 kernel, one length scale a feature (Rasmussen and Williams 2006, chapters 2, 4, 5).

    ``learn`` searches hyperparameters at random, from those that it found before; predictions are averages over the
    best few, weighted by their posterior probability.

    Args:
        points: all points ``[n, features]``, each feature within [0, 1].
    """

    def __init__(self, points: Array, random: np.random.Generator) -> None:
        self._points = points
        self._random = random
        self._known: list[_Model] = []
        self._learned_from = 0

    def learn(self, seen: Sequence[int], values: Array) -> None:
        """Fit to the values observed at points of these indices, unless there are hardly more than at the last time."""
        if len(seen) < RELEARN * self._learned_from:
            return
        self._learned_from = len(seen)
        with _blas_threads().limit(limits=1, user_api="blas"):
            models = [*self._known, *map(_Model, self._candidates(self._points.shape[1]))]
            fits = _fits(self._points[list(seen)], values - values.mean(), models)
        self._known = [fit.model for fit in fits[:MODELS]]

    def expect(self, seen: Sequence[int], values: Array, wanted: Indices) -> Array:
        """Return what is expected at a few points ``wanted``; arguments are those of ``predict``."""
        points, mean = self._points[list(seen)], float(values.mean())
        expected: Array = np.zeros(len(wanted))
        with _blas_threads().limit(limits=1, user_api="blas"):
            fits = _fits(points, values - mean, self._known)
            for weight, fit in zip(_probabilities(fits), fits, strict=True):
                across = _kernel(fit.model.hyperparameters.weights, points, self._points[wanted])
                expected += weight * (np.linalg.solve(fit.factor.T, fit.whitened) @ across + mean)
        return expected

    def predict(self, seen: Sequence[int], values: Array, wanted: Indices) -> list[tuple[float, Array, Array]]:
        """Return the weight of each model, and its mean and standard deviation at the points ``wanted``.

        All points are given by their indices; ``values`` were observed at ``seen``. ``learn`` comes first. It is fast
        where ``seen`` begins as at the last time.
        """
        mean = float(values.mean())
        domain = wanted if len(self._points) > MAX_KEPT else np.arange(len(self._points))
        places = slice(None) if domain is wanted else wanted
        models: list[tuple[float, Array, Array]] = []
        with _blas_threads().limit(limits=1, user_api="blas"):
            fits = _fits(self._points[list(seen)], values - mean, self._known)
            for weight, fit in zip(_probabilities(fits), fits, strict=True):
                projected = fit.model.project(fit.factor, self._points, list(seen), domain)
                explained = np.square(projected).sum(axis=0)[places]
                deviation = np.sqrt(np.maximum(fit.variance * (1.0 - explained), MIN_VARIANCE))
                models.append((float(weight), (fit.whitened @ projected + mean)[places], deviation))
        return models

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
            for known in [model.hyperparameters for model in self._known[:3]]
            for _ in range(MUTATIONS // 3)
        ]
        return [*varied, *fresh]


def _fits(points: Array, values: Array, models: Sequence[_Model]) -> list[_Fit]:
    """Return a fit of each model that is well-conditioned, the most probable first."""
    fits = [_fit(points, values, model) for model in models]
    return sorted((fit for fit in fits if fit is not None), key=lambda fit: fit.score, reverse=True)


def _probabilities(fits: Sequence[_Fit]) -> Array:
    relative = np.exp(np.array([fit.score - fits[0].score for fit in fits]))
    probabilities: Array = relative / relative.sum()
    return probabilities


def _fit(points: Array, values: Array, model: _Model) -> _Fit | None:
    """Return the log posterior of hyperparameters at the best signal variance; None if ill-conditioned."""
    count, hyperparameters = len(values), model.hyperparameters
    matrix = _kernel(hyperparameters.weights, points, points) + hyperparameters.noise * np.eye(count)
    try:
        factor: Array = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    whitened = np.linalg.solve(factor, values)
    variance = max(float(whitened @ whitened) / count, 1e-6)
    likelihood = -0.5 * count * np.log(variance) - np.log(np.diag(factor)).sum()
    prior = -0.5 * (np.log(hyperparameters.weights) ** 2).sum() / WEIGHT_SPREAD**2
    return _Fit(float(likelihood + prior), model, factor, whitened, variance)


def expected_improvement(best: float, mean: Array, deviation: Array) -> Array:
    """Return the expected fall of a normal variable below ``best`` (Jones, Schonlau and Welch 1998, equation 15)."""
    z = (best - mean) / deviation
    improvement: Array = (best - mean) * _normal_distribution(z) + deviation * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    return improvement


def _kernel(weights: Array, a: Array, b: Array, dtype: type[np.floating[Any]] = np.float64) -> Array:
    """Return the correlations ``[len(a), len(b)]`` of points by their weighted distances, computed in place."""
    scale = np.sqrt(5.0 * weights)
    a, b = (scale * a).astype(dtype), (scale * b).astype(dtype)
    squares = a @ (-2.0 * b.T)
    squares += np.square(a).sum(axis=1)[:, None]
    squares += np.square(b).sum(axis=1)
    np.maximum(squares, 0.0, out=squares)  # rounding may leave equal points a distance below zero
    distances = np.sqrt(squares, out=squares)
    kernel: Array = distances / 3.0
    kernel += 1.0
    kernel *= distances
    kernel += 1.0
    kernel *= np.exp(np.negative(distances, out=distances))
    return kernel


def _normal_distribution(z: Array) -> Array:
    """Return the standard normal distribution function, to 7.5e-8 (Abramowitz and Stegun 1964, 26.2.17)."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = series * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    return np.where(z > 0, 1.0 - tail, tail)
