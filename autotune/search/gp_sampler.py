"""An Optuna sampler for spaces that can be listed: a Gaussian process picks among the configs not tried yet."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from autotune.search.surrogate import GaussianProcess, expected_improvement

INITIAL: Final = 6  # observations before the surrogate is asked: with fewer its length scales are the prior's
CENTRAL: Final = 4  # of them, beside the default; 0 to 5 were tried on training sweeps (docs/search-efficiency.md)
WORST: Final = 1.2  # in log-time above the best (3.3 times as slow): what is worse, or fails, is merely bad
MAX_OBSERVATIONS: Final = 250  # a fit costs their cube: 30 ms at 250 (one core of a Xeon, 2026-11-21)
MAX_CANDIDATES: Final = 4096


class FiniteSpaceSampler(BaseSampler):
    """Proposes the untried config of the largest expected improvement of log-time.

    It never proposes a config twice. The first proposals are centre points (Box and Wilson 1951), as lists of values
    tend to have the likely ones in the middle, and then fill the space. A config that is being measured counts as what
    is expected of it (the kriging believer of Ginsbourger et al. 2010), so that parallel proposals differ. Failed
    configs are observations like slow ones: the surrogate learns where configs fail.

    Args:
        params: the Optuna parameters of every valid config.
        features: their places ``[configs, features]`` in the unit cube.
    """

    def __init__(
        self,
        params: Sequence[Mapping[str, Any]],
        features: NDArray[np.float64],
        distributions: dict[str, BaseDistribution],
        *,
        seed: int,
    ) -> None:
        self._params = params
        self._features = features
        self._distributions = distributions
        self._index = {tuple(sorted(param.items())): index for index, param in enumerate(params)}
        self._random = np.random.default_rng(seed)
        self._central = self._centre_points()
        self._surrogate = GaussianProcess(features, self._random)
        self._independent = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        # In the order in which they were asked; infinite where the config failed, None while it is measured.
        asked: dict[int, float | None] = {}
        for other in study.get_trials(deepcopy=False):
            index = self._index.get(tuple(sorted(other.params.items())))
            if index is not None and other.number != trial.number:
                asked[index] = _value(other) if other.state.is_finished() else None
        untried = np.setdiff1d(np.arange(len(self._params)), [*asked])
        if len(untried) == 0:
            return {}
        if sum(value is not None for value in asked.values()) < INITIAL:
            return dict(self._params[self._fill([*asked], untried)])
        return dict(self._params[self._improve(asked, untried)])

    def _centre_points(self) -> list[int]:
        """Return the configs nearest the middle of every ordered parameter, at random among equally near ones."""
        ordered = [(name, d.high) for name, d in self._distributions.items() if isinstance(d, IntDistribution)]
        squares = [sum((2 * param[name] / high - 1) ** 2 for name, high in ordered) for param in self._params]
        shuffled = self._random.permutation(len(squares))
        return [int(index) for index in shuffled[np.argsort(np.array(squares)[shuffled], kind="stable")][:CENTRAL]]

    def _fill(self, tried: list[int], untried: NDArray[np.int64]) -> int:
        """Return a centre point, or else an untried config far from all tried ones, at random among the far ones."""
        left = [index for index in self._central if index in untried]
        if left or not tried:
            return left[0] if left else int(self._random.choice(untried))
        differences = self._features[untried][:, None, :] - self._features[tried][None, :, :]
        distance = np.square(differences).sum(axis=-1).min(axis=1)
        return int(untried[np.argmax(distance * self._random.uniform(0.5, 1.0, len(untried)))])

    def _improve(self, asked: dict[int, float | None], untried: NDArray[np.int64]) -> int:
        if len(untried) > MAX_CANDIDATES:
            untried = self._random.choice(untried, MAX_CANDIDATES, replace=False)
        observed = {index: value for index, value in asked.items() if value is not None}
        pending = [index for index, value in asked.items() if value is None]
        seen = self._representative(observed)
        values = np.array([observed[index] for index in seen])
        best = float(values.min())
        values = np.minimum(values - best, WORST) if np.isfinite(best) else np.zeros(len(seen))
        self._surrogate.learn(seen, values)
        known = dict(zip(seen, values, strict=True))
        if pending:
            expected = self._surrogate.expect(seen, values, np.array(pending))
            known |= zip(pending, np.clip(expected, 0.0, WORST), strict=True)
        # In the order in which they were asked, where all are there: then the surrogate is asked about a few more.
        seen = [*asked] if len(seen) == len(observed) else [*known]
        models = self._surrogate.predict(seen, np.array([known[index] for index in seen]), untried)
        gain = sum(weight * expected_improvement(0.0, mean, deviation) for weight, mean, deviation in models)
        return int(untried[np.argmax(gain)])

    def _representative(self, observed: dict[int, float]) -> list[int]:
        """Return all observations, or of too many the better half of what fits and others at random."""
        if len(observed) <= MAX_OBSERVATIONS:
            return list(observed)
        ranked = sorted(observed, key=lambda index: observed[index])
        half = MAX_OBSERVATIONS // 2
        return [*ranked[:half], *(int(i) for i in self._random.choice(ranked[half:], half, replace=False))]


def _value(trial: FrozenTrial) -> float:
    return float(trial.value) if trial.state is TrialState.COMPLETE and trial.value is not None else float("inf")
