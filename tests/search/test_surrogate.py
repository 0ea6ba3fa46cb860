"""The surrogate against textbook formulas, and the sampler over it in a plain Optuna study."""

import math
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import IntDistribution

from autotune.search import surrogate
from autotune.search.gp_sampler import INITIAL, FiniteSpaceSampler
from autotune.search.surrogate import GaussianProcess, Hyperparameters, expected_improvement

POINTS = np.array([[i / 7, j / 7] for i in range(8) for j in range(8)])
WEIGHTS, NOISE = np.array([2.0, 0.5]), 0.01


def matern(a: Any, b: Any) -> float:
    """Matern 5/2 of two points, written out."""
    r = math.sqrt(sum(w * (x - y) ** 2 for w, x, y in zip(WEIGHTS, a, b, strict=True)))
    return (1 + math.sqrt(5) * r + 5 * r * r / 3) * math.exp(-math.sqrt(5) * r)


def test_a_prediction_is_that_of_the_textbook(monkeypatch: pytest.MonkeyPatch) -> None:
    """One model of known hyperparameters: mean and variance by the inverse of the whole kernel matrix."""
    process = GaussianProcess(POINTS, np.random.default_rng(0))
    monkeypatch.setattr(process, "_candidates", lambda features: [Hyperparameters(WEIGHTS, NOISE)])
    seen, wanted = [0, 9, 30, 44, 63], np.array([5, 20, 50])
    values = np.array([1.0, 0.2, -0.5, 0.4, 2.0])
    process.learn(seen, values)
    ((weight, mean, deviation),) = process.predict(seen, values, wanted)
    inverse = np.linalg.inv(
        np.array([[matern(POINTS[a], POINTS[b]) for b in seen] for a in seen]) + NOISE * np.eye(len(seen))
    )
    centred = values - values.mean()
    variance = centred @ inverse @ centred / len(seen)
    for place, expected, spread in zip(wanted, mean, deviation, strict=True):
        across = np.array([matern(POINTS[place], POINTS[a]) for a in seen])
        assert expected == pytest.approx(values.mean() + across @ inverse @ centred, rel=1e-5)
        assert spread == pytest.approx(math.sqrt(variance * (1 - across @ inverse @ across)), rel=1e-5)
    assert weight == 1.0


def test_a_smooth_function_is_learned() -> None:
    truth = np.sin(3 * POINTS[:, 0]) + POINTS[:, 1] ** 2
    process = GaussianProcess(POINTS, np.random.default_rng(0))
    seen = list(range(0, 64, 3))
    unseen = np.setdiff1d(np.arange(64), seen)
    process.learn(seen, truth[seen])
    models = process.predict(seen, truth[seen], unseen)
    mean = sum(weight * mean for weight, mean, _ in models)
    assert sum(weight for weight, _, _ in models) == pytest.approx(1.0)
    assert np.abs(mean - truth[unseen]).max() < 0.05 * np.ptp(truth)


def test_expected_improvement_is_the_mean_of_what_falls_below() -> None:
    draws = np.random.default_rng(0).normal(size=400_000)
    for mean, deviation in ((0.0, 1.0), (1.0, 0.5), (-0.3, 0.2)):
        sampled = np.maximum(0.0, 0.1 - (mean + deviation * draws)).mean()
        found = expected_improvement(0.1, np.array([mean]), np.array([deviation]))[0]
        assert found == pytest.approx(sampled, abs=3e-3)


def test_the_normal_distribution_is_that_of_the_library() -> None:
    z = np.linspace(-6, 6, 241)
    expected = [0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z]
    assert np.abs(surrogate._normal_distribution(z) - expected).max() < 1e-7


def make_study(seed: int = 0) -> tuple[optuna.Study, dict[str, Any]]:
    """A study over the 64 points as two integers; those of an odd sum are not valid."""
    params = [{"x": i, "y": j} for i in range(8) for j in range(8) if (i + j) % 2 == 0]
    features = np.array([[p["x"] / 7, p["y"] / 7] for p in params])
    distributions: dict[str, Any] = {"x": IntDistribution(0, 7), "y": IntDistribution(0, 7)}
    sampler = FiniteSpaceSampler(params, features, distributions, seed=seed)
    return optuna.create_study(sampler=sampler), distributions


def place(trial: optuna.Trial) -> tuple[int, int]:
    return trial.params["x"], trial.params["y"]


@pytest.mark.parametrize("in_flight", [1, 8])
def test_the_sampler_proposes_every_valid_point_once(in_flight: int) -> None:
    study, distributions = make_study()
    places, pending = [], []
    for _ in range(32):
        pending.append(study.ask(distributions))
        places.append(place(pending[-1]))
        if len(pending) == in_flight:
            trial = pending.pop(0)
            study.tell(trial, float(sum(place(trial))))
    assert len(set(places)) == 32
    assert all((x + y) % 2 == 0 for x, y in places)


def test_the_sampler_goes_where_the_values_are_low() -> None:
    study, distributions = make_study()
    places = []
    for _ in range(INITIAL + 6):
        trial = study.ask(distributions)
        places.append(place(trial))
        study.tell(trial, math.hypot(trial.params["x"] - 6, trial.params["y"] - 2))
    assert (6, 2) in places


def test_the_sampler_goes_on_when_everything_fails() -> None:
    study, distributions = make_study()
    places = []
    for _ in range(20):
        trial = study.ask(distributions)
        places.append(place(trial))
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    assert len(set(places)) == 20
