"""Fitting what ranks configs of paged decode: a planted preference is found, and what was left out is kept."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from autotune.device import NVIDIA_H200
from autotune.search_spaces.paged_decode.decode_features import ConfigColumns, features
from autotune.search_spaces.paged_decode.decode_ranking import Networks
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION
from autotune.shape import PagedShape
from benchmarks import decode_ranking, fitted_defaults
from benchmarks.decode_ranking import Recording
from benchmarks.recorded_shapes import RecordedShape


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    """Shapes of which short ones are the fastest in few splits, and long ones in many."""
    found = []
    for batch, context in itertools.product((1, 2), (2048, 4096, 65536, 131072)):
        shape = PagedShape(batch=batch, heads=8, kv_heads=8, max_context=context, head_dim=128)
        configs = [
            config
            for config in IMPLEMENTATION.space.configs(shape, NVIDIA_H200)
            if config["schedule"] == "split" and (config["num_warps"], config["num_stages"]) == (4, 3)
        ][::3]
        wanted = 3 if context < 8192 else 6
        losses = np.array([0.1 * abs(math.log2(config.integer("NUM_SPLITS")) - wanted) for config in configs])
        losses -= losses.min()
        ratios = dict(zip(configs, np.exp(losses).tolist(), strict=True))
        recorded = RecordedShape(
            shape=shape, device=NVIDIA_H200, ratios=ratios, default=configs[0], source_hash="", triton="3.6.0"
        )
        given = features(shape, NVIDIA_H200, ConfigColumns.of(configs))
        found.append(Recording(recorded, tuple(configs), given, losses))
    return found


def test_a_planted_preference_is_found(recordings: list[Recording], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_ranking, "LEAST_SHAPES", 2)
    networks = decode_ranking.fit(recordings, 2)
    for each in recordings:
        assert each.losses[np.argmin(networks.rank(each.given))] < 0.06
    assert len(networks.tiles) > 0
    assert {tuple(tile) for tile in networks.tiles.tolist()} <= {
        decode_ranking.tile_of(config) for each in recordings for config in each.configs
    }


def test_shapes_are_left_out_and_what_they_lose_is_kept(
    recordings: list[Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    fit = decode_ranking.fit

    def noted(given: list[Recording], networks: int) -> Networks:
        seen.append({repr(each.shape.shape) for each in given})
        return fit(given, 1)

    monkeypatch.setattr(decode_ranking, "fit", noted)
    lost = list(decode_ranking.leave_out(recordings))
    assert [len(each) for each in seen] == [7] * 8 + [8] * (decode_ranking.FOLDS - 8)
    assert {repr(each.shape.shape) for each, _ in lost} == set().union(*seen)
    path = tmp_path / "networks.npz"
    decode_ranking.save(fit(recordings, 1), lost, path)
    monkeypatch.setitem(fitted_defaults.FITTED, "paged_decode/triton", path)
    for each, regret in lost:
        assert fitted_defaults.is_fitted(IMPLEMENTATION, each.shape.shape, NVIDIA_H200)
        assert fitted_defaults.left_out_loss(IMPLEMENTATION, each.shape.shape, NVIDIA_H200) == pytest.approx(regret)
    other = PagedShape(batch=3, heads=8, max_context=2048, head_dim=128)
    assert not fitted_defaults.is_fitted(IMPLEMENTATION, other, NVIDIA_H200)
