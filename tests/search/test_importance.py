"""Importance of parameters: what a time is made of is what the evaluators find, and nothing is found in too little."""

import math
from collections.abc import Callable, Iterator
from itertools import islice, product
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError, UnknownNameError
from autotune.search.importance import EVALUATORS, MIN_CONFIGS, Evaluator, importance
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION as FLASH
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION as DECODE
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Status, Timing

NAMES = ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages", "loads")


def fanova_or_skip(evaluator: Evaluator) -> Evaluator:
    if evaluator == "fANOVA":
        pytest.importorskip("sklearn", reason="fANOVA needs scikit-learn")
    return evaluator


@pytest.fixture(params=EVALUATORS)
def evaluator(request: pytest.FixtureRequest) -> Evaluator:
    return fanova_or_skip(request.param)


def configs() -> Iterator[Config]:
    """A grid over all five parameters, balanced."""
    values = [FLASH.space.parameters[i].values[: 2 if name == "loads" else 3] for i, name in enumerate(NAMES)]
    for chosen in product(*values):
        yield Config(
            {**dict(zip(NAMES, chosen, strict=True)), "waves_per_eu": None, "matrix_instr_nonkdim": None, "kpack": None}
        )


def outcomes(cost: Callable[[Config], float], status: Status = Status.OK) -> list[Outcome]:
    return [judged(config, cost(config), status) for config in configs()]


def judged(config: Config, microseconds: float, status: Status = Status.OK) -> Outcome:
    candidate = Candidate("triton", config)
    return Outcome(candidate=candidate, status=status, timing=Timing(microseconds, microseconds, microseconds, 9))


def shares(judged: list[Outcome], evaluator: Evaluator) -> dict[str, float]:
    return importance(FLASH.space, NVIDIA_H200, judged, evaluator)


def test_shares_of_parameters_are_those_that_the_time_was_made_of(evaluator: Evaluator) -> None:
    def cost(config: Config) -> float:
        return 100 * math.exp(2.0 * math.log2(config.integer("num_warps")) + 0.5 * math.log2(config.integer("BLOCK_K")))

    found = shares(outcomes(cost), evaluator)
    assert set(list(found)[:2]) == {"num_warps", "BLOCK_K"}
    assert sum(found.values()) == pytest.approx(1.0)
    assert set(found) == set(NAMES)
    assert max(found[name] for name in ("BLOCK_Q", "num_stages", "loads")) < 0.05


def test_fanova_is_the_share_of_variance() -> None:
    """On a balanced grid of an additive log time, each share is that part's variance: here 16 : 1."""
    fanova_or_skip("fANOVA")

    def cost(config: Config) -> float:
        return 100 * math.exp(2.0 * math.log2(config.integer("num_warps")) + 0.5 * math.log2(config.integer("BLOCK_K")))

    found = shares(outcomes(cost), "fANOVA")
    assert found["num_warps"] == pytest.approx(16 / 17, abs=0.02)
    assert found["BLOCK_K"] == pytest.approx(1 / 17, abs=0.02)


def test_equal_trials_have_equal_shares(evaluator: Evaluator) -> None:
    judged = outcomes(lambda config: 100.0 + config.integer("BLOCK_Q") * config.integer("num_stages"))
    assert shares(judged, evaluator) == shares(judged, evaluator)


def test_failed_configs_do_not_count_and_slow_ones_do(evaluator: Evaluator) -> None:
    right = outcomes(lambda config: 100.0 * config.integer("num_warps"))
    failed = [Outcome(candidate=o.candidate, status=Status.COMPILE_ERROR) for o in right[::3]]
    wrong = outcomes(lambda config: 1e6 / config.integer("BLOCK_Q"), Status.WRONG_RESULT)
    assert shares([*right, *wrong, *failed], evaluator) == shares(right, evaluator)
    early = [judged(o.config, o.timing.median_us, Status.SLOW) for o in right if o.timing]
    assert shares(early, evaluator) == shares(right, evaluator)


@pytest.mark.parametrize("count", [0, 1, MIN_CONFIGS - 1])
def test_too_few_configs_have_no_shares(evaluator: Evaluator, count: int) -> None:
    assert shares(list(islice(outcomes(lambda config: float(config.integer("BLOCK_Q"))), count)), evaluator) == {}


def test_configs_that_take_equally_long_have_no_shares(evaluator: Evaluator) -> None:
    assert shares(outcomes(lambda config: 100.0), evaluator) == {}


def test_a_parameter_that_applies_to_one_schedule_has_a_share(evaluator: Evaluator) -> None:
    """Splits of 1 to 16 decide the time of one schedule; of the other there is none, and all take equally long."""
    base: dict[str, Any] = {"BLOCK_ROWS": 16, "HEADS": 1, "BLOCK_K": 64, "COMBINE": "kernel", "PARTIALS": "float32"}
    none = {"waves_per_eu": None, "matrix_instr_nonkdim": None, "kpack": None}
    found = []
    for warps, stages, splits in product((2, 4, 8), (2, 3, 4), (None, 1, 2, 4, 8, 16)):
        schedule = {
            "schedule": "flat" if splits is None else "split",
            "NUM_SPLITS": splits,
            "PROGRAMS_PER_SM": 1 if splits is None else None,
        }
        config = Config({"schedule": "", **base, **schedule, "num_warps": warps, "num_stages": stages, **none})
        found.append(judged(config, 100.0 if splits is None else 100.0 / splits))
    shares = importance(DECODE.space, NVIDIA_H200, found, evaluator)
    assert max(shares, key=lambda name: shares[name]) == "NUM_SPLITS"


def test_an_unknown_evaluator_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="evaluator='guess' is unknown; allowed: fANOVA, PED-ANOVA"):
        importance(FLASH.space, NVIDIA_H200, [], "guess")  # type: ignore[arg-type]


def test_fanova_without_its_forest_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import optuna

    def absent(*_: object, **__: object) -> None:
        raise ImportError("sklearn")

    monkeypatch.setattr(optuna.importance, "FanovaImportanceEvaluator", absent)
    with pytest.raises(MissingDependencyError, match="pip install scikit-learn"):
        shares(outcomes(lambda config: float(config.integer("BLOCK_Q"))), "fANOVA")
    assert shares(outcomes(lambda config: float(config.integer("BLOCK_Q"))), "PED-ANOVA")
