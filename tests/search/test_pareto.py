"""Joint axes, fronts, volumes and shares, against counting and against functions whose answer is known."""

import importlib
import importlib.util
import itertools
import random
from collections.abc import Sequence

import pytest

from autotune.errors import MissingDependencyError, UnknownNameError
from autotune.search.pareto import ParetoStudy, hypervolume, sensitivity
from autotune.space import Config, Parameter, combinations

AXES = (
    Parameter("kind", ("plain", "tiled")),
    Parameter("precision", ("low", "high")),
    Parameter("block", (16, 32, 64, 128), only=("kind", "tiled")),
    Parameter("stages", (1, 2, 3), only=("kind", "tiled")),
)
POINTS = list(combinations(AXES))


def accept(point: Config) -> str | None:
    return None


def values(point: Config) -> tuple[float, float]:
    """Two objectives that disagree about the precision; the block matters, the stages do not."""
    block = 0 if point["block"] is None else AXES[2].values.index(point["block"])
    is_high = point["precision"] == "high"
    return (3.0 + is_high - 0.5 * block, 1.0 - 0.9 * is_high)


def beats(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and tuple(a) != tuple(b)


def run(study: ParetoStudy, most: int) -> list[Config]:
    """Ask and tell until nothing is left, or so often."""
    asked: list[Config] = []
    while len(asked) < most and (point := study.ask()) is not None:
        study.tell(point, values(point))
        asked.append(point)
    return asked


def test_points_have_a_parameter_only_where_it_applies() -> None:
    assert len(POINTS) == 2 + 2 * 4 * 3
    assert all((point["block"] is None) == (point["kind"] == "plain") for point in POINTS)
    assert len(set(POINTS)) == len(POINTS)


def test_what_fits_the_budget_is_enumerated_in_order() -> None:
    first = [POINTS[5], POINTS[2]]
    study = ParetoStudy(AXES, accept, objectives=2, budget=len(POINTS), first=first)
    asked = run(study, 100)
    assert study.is_enumerated
    assert asked[:2] == first
    assert sorted(map(POINTS.index, asked)) == list(range(len(POINTS)))
    assert study.ask() is None


def test_front_is_what_nothing_beats() -> None:
    study = ParetoStudy(AXES, accept, objectives=2, budget=100)
    run(study, 100)
    best = [point for point in POINTS if not any(beats(values(other), values(point)) for other in POINTS)]
    assert set(study.front()) == set(best)
    assert len(best) == 6  # the longest block in both precisions, whatever the stages


@pytest.mark.parametrize("seed", range(3))
def test_sampled_points_are_valid_and_never_repeated(seed: int) -> None:
    def reject(point: Config) -> str | None:
        return "too large" if point["block"] == 128 and point["stages"] == 3 else None

    study = ParetoStudy(AXES, reject, objectives=2, budget=20, seed=seed)
    assert study.size == len(POINTS) - 2
    assert not study.is_enumerated
    asked = run(study, 100)
    assert len(asked) == len(set(asked)) == study.size
    assert all(reject(point) is None for point in asked)


def test_same_seed_asks_the_same() -> None:
    first, second, other = (
        run(ParetoStudy(AXES, accept, objectives=2, budget=15, seed=seed), 15) for seed in (4, 4, 5)
    )
    assert first == second
    assert first != other


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_sampler_turns_to_what_is_good(seed: int) -> None:
    """Of 1600 points it finds one of the best 8, which 80 draws at random do in a third of the cases."""
    axes = (Parameter("a", tuple(range(40))), Parameter("b", tuple(range(40))))
    study = ParetoStudy(axes, accept, objectives=2, budget=80, seed=seed)
    found = []
    for _ in range(80):
        point = study.ask()
        assert point is not None
        found.append(float(point.integer("a") ** 2 + point.integer("b") ** 2))
        study.tell(point, (found[-1], found[-1] + 1.0))
    assert min(found) <= 5.0


def test_failures_are_not_of_the_front_and_not_asked_again() -> None:
    study = ParetoStudy(AXES, accept, objectives=2, budget=20)
    asked = []
    while (point := study.ask()) is not None:
        study.tell(point, None if point["kind"] == "tiled" else values(point))
        asked.append(point)
    assert len(set(asked)) == len(asked) == len(POINTS)
    assert {point["kind"] for point in study.front()} == {"plain"}


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_hypervolume_is_what_counting_finds(dimensions: int) -> None:
    draw = random.Random(dimensions)
    reference = (6,) * dimensions
    points = [tuple(draw.randrange(0, 8) for _ in range(dimensions)) for _ in range(7)]
    cells = itertools.product(range(6), repeat=dimensions)
    inside = [point for point in points if all(a < b for a, b in zip(point, reference, strict=True))]
    counted = sum(any(all(a <= c for a, c in zip(p, cell, strict=True)) for p in inside) for cell in cells)
    assert counted > 0
    assert hypervolume(points, reference) == pytest.approx(counted)


def test_hypervolume_of_nothing_is_zero() -> None:
    assert hypervolume([], (1.0, 1.0)) == 0.0
    assert hypervolume([(1.0, 0.0), (2.0, -1.0)], (1.0, 1.0)) == 0.0


def test_shares_find_what_an_objective_depends_on() -> None:
    results = {point: values(point) for point in POINTS}
    assert next(iter(sensitivity(AXES, results, "PED-ANOVA", 1))) == "precision"
    shares = sensitivity(AXES, results, "PED-ANOVA", 0)
    assert shares["block"] > 5 * shares["stages"]
    assert sum(shares.values()) == pytest.approx(1.0)
    front = sensitivity(AXES, results, "PED-ANOVA", None)
    assert set(front) == {axis.name for axis in AXES}


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="fANOVA grows its forest with scikit-learn")
def test_fanova_shares_are_those_of_the_variance() -> None:
    axes = (Parameter("a", (0, 1)), Parameter("b", (0, 1)), Parameter("c", tuple(range(5))))
    results = {point: (3.0 * point.integer("a") + point.integer("b"),) for point in combinations(axes)}
    shares = sensitivity(axes, results, "fANOVA", 0)
    assert shares["a"] == pytest.approx(0.9, abs=0.05)  # 9 / (9 + 1)
    assert shares["b"] == pytest.approx(0.1, abs=0.05)
    assert shares["c"] < 0.02


def test_fanova_without_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise ImportError("Tried to import 'sklearn' but failed")  # as Optuna does

    real = importlib.import_module("optuna.importance")  # `optuna.importance` is a stand-in until its first use
    monkeypatch.setattr(real, "FanovaImportanceEvaluator", refuse)
    with pytest.raises(MissingDependencyError, match="pip install scikit-learn"):
        sensitivity(AXES, {point: values(point) for point in POINTS}, "fANOVA", 0)


def test_too_few_or_equal_points_have_no_shares() -> None:
    few = {point: values(point) for point in POINTS[:9]}
    alike = dict.fromkeys(POINTS, (1.0, 2.0))
    assert sensitivity(AXES, few, "PED-ANOVA", 0) == {}
    assert sensitivity(AXES, alike, "PED-ANOVA", None) == {}


def test_axes_that_were_not_varied_have_no_share() -> None:
    tiled = {point: values(point) for point in POINTS if point["kind"] == "tiled"}
    assert set(sensitivity(AXES, tiled, "PED-ANOVA", 0)) == {"precision", "block", "stages"}


def test_another_evaluator_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"evaluator='sobol'.*fANOVA, PED-ANOVA"):
        sensitivity(AXES, {}, "sobol", 0)  # type: ignore[arg-type]
