"""The times to expect of an implementation: a trend over sizes and features, and its errors near by."""

import math

import numpy as np
import pytest
from sklearn.linear_model import Ridge  # type: ignore[import-untyped]
from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

from autotune.device import NVIDIA_H200
from autotune.dispatch.expected_times import FADING, PENALTY, expected_times
from autotune.likeness import Likeness, likeness
from autotune.shape import AttentionShape
from autotune.table import Assignment
from tests import sample

LENGTHS = (512, 1024, 4096, 8192, 16384)


def shape_of(seq: int, *, softcap: bool = False, heads: int = 16) -> AttentionShape:
    return AttentionShape(batch=4, heads=heads, seq_q=seq, head_dim=128, causal=True, softcap=softcap)


def here(shape: AttentionShape) -> Likeness:
    return likeness(shape, NVIDIA_H200)


def votes(asked: AttentionShape, rows: list[Assignment]) -> list[tuple[Assignment, float]]:
    return [(row, max(1e-3, here(asked).distance(row.likeness)) ** -2) for row in rows]


def time_of(shape: AttentionShape) -> float:
    """A tenth longer at each doubling from 512 tokens on, and a quarter shorter with softcap."""
    return float((2.0 if not shape.softcap else 1.5) * 1.1 ** math.log2(shape.seq_q / 512))


def recorded(*shapes: AttentionShape) -> list[Assignment]:
    return [sample.assignment(shape, behind=time_of(shape) - 1.0, left_out_regret=0.0) for shape in shapes]


def test_a_trend_over_sizes_and_features_is_found_between_the_recorded_shapes() -> None:
    rows = recorded(*(shape_of(seq, softcap=softcap) for seq in LENGTHS for softcap in (False, True)))
    for softcap in (False, True):
        asked = shape_of(2048, softcap=softcap)
        found = expected_times(here(asked), votes(asked, rows))
        assert found.chosen == found.best == pytest.approx(time_of(asked), rel=0.05)
        assert found.alike is not None
    only = [row for row in rows if not row.shape.as_dict()["softcap"]]
    assert expected_times(here(shape_of(2048, softcap=True)), votes(shape_of(2048, softcap=True), only)).alike is None


def test_it_is_the_ridge_regression_of_scikit_learn_and_the_faded_errors() -> None:
    generator = np.random.default_rng(7)
    shapes = [shape_of(seq, heads=heads) for seq in LENGTHS for heads in (8, 32)]
    rows = [sample.assignment(shape, behind=generator.uniform(0.0, 0.5), left_out_regret=0.125) for shape in shapes]
    asked = shape_of(3000, heads=16)
    known = votes(asked, rows)
    places = np.array([row.likeness.sizes for row in rows])
    scaler = StandardScaler().fit(places)
    times = np.log([1.125 * (1.0 + (row.behind or 0.0)) for row in rows])
    trend = Ridge(alpha=PENALTY).fit(scaler.transform(places), times)
    weights = np.array([vote for _, vote in known])
    errors = times - trend.predict(scaler.transform(places))
    (expected,) = trend.predict(scaler.transform([here(asked).sizes])) + weights @ errors / (weights.sum() + FADING)
    found = expected_times(here(asked), known)
    assert found.chosen == pytest.approx(math.exp(expected))
    assert found.best == pytest.approx(found.chosen / 1.125)


def test_a_recorded_shape_has_its_own_time_whatever_the_trend() -> None:
    rows = [*recorded(*map(shape_of, LENGTHS)), sample.assignment(shape_of(2048), behind=0.9, left_out_regret=0.0)]
    found = expected_times(here(shape_of(2048)), votes(shape_of(2048), rows))
    assert found.best == pytest.approx(1.9, rel=1e-3)


def test_sizes_beyond_the_recorded_ones_count_as_the_nearest_of_these() -> None:
    rows = recorded(*map(shape_of, LENGTHS))
    farthest, beyond = (
        expected_times(here(shape_of(seq)), votes(shape_of(2048), rows)).best for seq in (LENGTHS[-1], 2**20)
    )
    assert beyond == pytest.approx(farthest)


def test_alike_are_the_means_of_the_same_features_by_votes() -> None:
    rows = recorded(shape_of(512), shape_of(2048)) + recorded(shape_of(1024, softcap=True))
    asked = shape_of(1024)
    known = votes(asked, rows)
    weights = np.array([vote for _, vote in known[:2]])
    times = np.array([time_of(shape_of(512)), time_of(shape_of(2048))])
    found = expected_times(here(asked), known)
    assert found.alike is not None
    assert found.alike == pytest.approx((weights @ times / weights.sum(),) * 2)


def test_one_shape_tells_its_own_times() -> None:
    (row,) = recorded(shape_of(512))
    found = expected_times(here(shape_of(8192)), votes(shape_of(8192), [row]))
    assert found.chosen == found.best == pytest.approx(2.0)
