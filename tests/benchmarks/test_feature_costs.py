"""Costs of features: the lengths of a padded batch, its calls on the CPU, the problems, and what is wanted."""

import sys

import pytest
import torch

from benchmarks import feature_costs
from benchmarks.feature_costs import OVER_CACHES, WITH_SINKS, FeatureCost, draw_lengths
from tests import sample
from tests.contract.interpreting import interpret


def test_lengths_reach_the_longest_and_follow_the_seed() -> None:
    lengths = draw_lengths(64, 2048, 3)
    assert (len(lengths), max(lengths), min(lengths) >= 1) == (64, 2048, True)
    assert lengths == draw_lengths(64, 2048, 3) != draw_lengths(64, 2048, 4)


def padding_difference(side: str, causal: bool) -> float:
    """Return how far real tokens of the padded batch are from those that are packed, on the CPU."""
    feature_costs.DEVICE, feature_costs.SETS = "cpu", 1  # type: ignore[misc]
    feature_costs.HEADS.update(heads=2, kv_heads=1, head_dim=32, dtype="float16")
    lengths = (5, 3, 7)
    calls = feature_costs.padded_calls(lengths, causal, side)
    padded, packed = (calls[name][0]() for name in ("with", "without"))
    rows = [range(length) if side == "right" else range(7 - length, 7) for length in lengths]
    found = torch.cat([padded[sequence, list(each)] for sequence, each in enumerate(rows)])
    return float((found.float() - packed.float()).abs().max())


@pytest.mark.parametrize(("side", "causal"), [("right", True), ("right", False), ("left", True)])
def test_a_padded_batch_has_the_results_of_its_tokens_packed(side: str, causal: bool) -> None:
    assert interpret(padding_difference, side, causal) < 2e-3


@pytest.mark.parametrize(
    ("feature", "ratio", "wanted"),
    [("padding", 1.05, True), ("padding", 1.06, False), ("sinks", 1.02, False), ("fp8 cache", 1.05, True)],
)
def test_what_is_wanted(feature: str, ratio: float, wanted: bool) -> None:
    assert FeatureCost(feature, "a problem", 100.0 * ratio, 100.0).is_wanted is wanted


def test_problems_differ_in_the_feature_alone() -> None:
    assert all(not shape.as_dict()["sinks"] for _, shape in WITH_SINKS)
    assert all(shape.kv_dtype == shape.dtype for shape in OVER_CACHES)


def test_another_feature_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sample.hide_gpu(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["feature_costs"])
    with pytest.raises(SystemExit):
        feature_costs.main(["masks"])
    assert "'masks' is none; expected padding, sinks, fp8 cache" in capsys.readouterr().err
