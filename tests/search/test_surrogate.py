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


def matern(a: Any, b: Any, weights: Any = WEIGHTS) -> float:
    """Matern 5/2 of two points, written out."""
    r = math.sqrt(sum(w * (x - y) ** 2 for w, x, y in zip(weights, a, b, strict=True)))
    return (1 + math.sqrt(5) * r + 5 * r * r / 3) * math.exp(-math.sqrt(5) * r)


def textbook(seen: list[int], values: Any, wanted: Any, weights: Any, noise: float) -> tuple[list[float], list[float]]:
    """Means and deviations by the inverse of the whole kernel matrix."""
    kernel = np.array([[matern(POINTS[a], POINTS[b], weights) for b in seen] for a in seen])
    inverse, centred = np.linalg.inv(kernel + noise * np.eye(len(seen))), values - values.mean()
    variance = centred @ inverse @ centred / len(seen)
    rows = [np.array([matern(POINTS[place], POINTS[a], weights) for a in seen]) for place in wanted]
    means = [values.mean() + row @ inverse @ centred for row in rows]
    return means, [math.sqrt(variance * (1 - row @ inverse @ row)) for row in rows]


def test_a_prediction_is_that_of_the_textbook(monkeypatch: pytest.MonkeyPatch) -> None:
    """One model of known hyperparameters."""
    process = GaussianProcess(POINTS, np.random.default_rng(0))
    monkeypatch.setattr(process, "_candidates", lambda features: [Hyperparameters(WEIGHTS, NOISE)])
    seen, wanted = [0, 9, 30, 44, 63], np.array([5, 20, 50])
    values = np.array([1.0, 0.2, -0.5, 0.4, 2.0])
    process.learn(seen, values)
    ((weight, mean, deviation),) = process.predict(seen, values, wanted)
    expected, spread = textbook(seen, values, wanted, WEIGHTS, NOISE)
    assert mean == pytest.approx(expected, rel=1e-5)
    assert deviation == pytest.approx(spread, rel=1e-5)
    assert weight == 1.0


def predict(process: GaussianProcess, seen: list[int], wanted: Any) -> tuple[Any, Any]:
    """Of one model, after it has learned."""
    ((_, mean, deviation),) = process.predict(seen, np.cos(np.array(seen, float)), np.array(wanted))
    return mean, deviation


@pytest.mark.parametrize("most_kept", [10_000, 1])  # of points: predictions are kept, or not
def test_predictions_go_on_from_those_before(monkeypatch: pytest.MonkeyPatch, most_kept: int) -> None:
    """Whatever the points seen have in common with the last ones, as of a process that saw no others."""
    monkeypatch.setattr(surrogate, "MAX_KEPT", most_kept)

    def learned() -> GaussianProcess:
        process = GaussianProcess(POINTS, np.random.default_rng(0))
        monkeypatch.setattr(process, "_candidates", lambda features: [Hyperparameters(WEIGHTS, NOISE)])
        process.learn([0, 9], np.array([0.0, 1.0]))
        return process

    process = learned()
    for seen in ([0, 9], [0, 9, 30], [0, 9, 30, 44, 63], [0, 9, 31, 44, 63, 7], [9, 0], [9]):
        wanted = [place for place in range(64) if place not in seen][:: len(seen)]
        for found, fresh in zip(predict(process, seen, wanted), predict(learned(), seen, wanted), strict=True):
            assert found == pytest.approx(fresh, rel=1e-4, abs=1e-5)
        expected = process.expect(seen, np.cos(np.array(seen, float)), np.array(wanted))
        assert expected == pytest.approx(predict(process, seen, wanted)[0], rel=1e-4, abs=1e-5)


def test_single_precision_is_enough_where_the_least_noise_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a rough surface, at points beside those that were measured."""
    weights, noise = np.array([100.0, 100.0]), surrogate.NOISE[0]
    process = GaussianProcess(POINTS, np.random.default_rng(0))
    monkeypatch.setattr(process, "_candidates", lambda features: [Hyperparameters(weights, noise)])
    seen, wanted = list(range(0, 64, 2)), list(range(1, 64, 2))
    process.learn(seen, np.cos(np.array(seen, float)))
    mean, deviation = predict(process, seen, wanted)
    expected, spread = textbook(seen, np.cos(np.array(seen, float)), wanted, weights, noise)
    assert np.abs(mean - expected).max() < 0.01 * min(spread)
    assert deviation == pytest.approx(spread, rel=0.01)


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
