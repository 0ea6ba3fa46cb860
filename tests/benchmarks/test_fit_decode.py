"""Fitting what ranks configs of paged decode: a planted preference is found, and what was left out is kept."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from autotune.device import NVIDIA_H200
from autotune.search_spaces.networks import Networks, name_of
from autotune.search_spaces.paged_decode.decode_features import ConfigColumns, features
from autotune.search_spaces.paged_decode.decode_ranking import read_networks, tile_of
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION
from autotune.shape import PagedShape
from autotune.space import Space
from benchmarks import fit_decode, fitted_defaults, network_fit
from benchmarks.network_fit import FittedShape


@pytest.fixture(scope="module")
def recordings() -> list[FittedShape]:
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
        given = features(shape, NVIDIA_H200, ConfigColumns.of(configs))
        found.append(FittedShape(shape, NVIDIA_H200, tuple(configs), given, losses))
    return found


def test_a_planted_preference_is_found(recordings: list[FittedShape], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_decode, "LEAST_SHAPES", 2)
    networks = network_fit.fit(recordings, 2)
    for each in recordings:
        assert network_fit.lost(each.losses, networks.rank(each.given)) < 0.06
    tiles = fit_decode.choose_tiles(recordings)
    assert len(tiles) > 0
    assert {tuple(tile) for tile in tiles.tolist()} <= {
        tile_of(config) for each in recordings for config in each.candidates
    }


def test_shapes_are_left_out_and_what_they_lose_is_kept(
    recordings: list[FittedShape], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    fit = network_fit.fit

    def noted(given: list[FittedShape], networks: int, estimate: int | None = None) -> Networks:
        seen.append({repr(each.shape) for each in given})
        return fit(given, 1)

    monkeypatch.setattr(network_fit, "fit", noted)
    ranked = list(network_fit.leave_out(recordings))
    assert [len(each) for each in seen] == [7] * 8 + [8] * (network_fit.FOLDS - 8)
    assert {repr(each.shape) for each, _ in ranked} == set().union(*seen)
    path = tmp_path / "networks.npz"
    fit_decode.save(fit(recordings, 1), fit_decode.choose_tiles(recordings), ranked, path)
    monkeypatch.setitem(fitted_defaults.FITTED, "paged_decode/triton", path)
    for each, ranks in ranked:
        assert fitted_defaults.is_fitted(IMPLEMENTATION, each.shape)
        lost = math.expm1(each.losses[np.argmin(ranks)])
        assert fitted_defaults.left_out_loss(IMPLEMENTATION, each.shape, NVIDIA_H200) == pytest.approx(lost)
    other = PagedShape(batch=3, heads=8, max_context=2048, head_dim=128)
    assert not fitted_defaults.is_fitted(IMPLEMENTATION, other)


def test_of_another_device_only_shapes_that_it_lacks_are_judged(
    recordings: list[FittedShape], monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[set[str]] = []
    fit = network_fit.fit

    def noted(given: list[FittedShape], networks: int, estimate: int | None = None) -> Networks:
        fitted.append({each.device.name for each in given})
        return fit(given, 1)

    monkeypatch.setattr(network_fit, "fit", noted)
    assert list(network_fit.leave_out_devices(recordings)) == []  # no other device
    of_both = [
        replace(each, device=replace(each.device, name=name))
        for name, some in (("this", recordings), ("other", recordings[:-2]))
        for each in some
    ]
    ranked = list(network_fit.leave_out_devices(of_both))
    assert fitted == [{"other"}]  # which recorded nothing alone
    assert [(each.device.name, each.shape) for each, _ in ranked] == [("this", each.shape) for each in recordings[-2:]]


def test_what_ships_was_fitted_to_what_is_recorded() -> None:
    """In sample: that the networks belong to these features and this order, not how near new shapes are."""
    fitted = fit_decode.read()
    with np.load(fitted_defaults.DECODE_NETWORKS, allow_pickle=False) as arrays:
        recorded, left_out = set(arrays["recorded"].tolist()), set(arrays["left_out"].tolist())
    assert {name_of("triton", each.shape, each.device) for each in fitted} == recorded, "run benchmarks.fit_decode"
    several = [each for each in fitted if len(each.candidates) > 1]
    assert {name_of("triton", each.shape, each.device) for each in several} == left_out
    given, networks = np.concatenate([each.given for each in several]), read_networks()
    # Each feature has the mean and the extremes of the one that was fitted.
    np.testing.assert_allclose(given.mean(axis=0), networks.mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose((given.min(axis=0), given.max(axis=0)), (networks.low, networks.high), rtol=1e-4)
    broad = [each for each in fitted if each.is_broad]
    space: Space[Any] = IMPLEMENTATION.space
    chosen = [(each, space.default(each.shape, each.device)) for each in broad]
    regrets = [
        math.expm1(each.losses[each.candidates.index(config)]) for each, config in chosen if config in each.candidates
    ]
    assert len(regrets) > 0.5 * len(broad)
    assert median(regrets) < 0.01
    assert sum(regret > 0.08 for regret in regrets) < 0.06 * len(regrets)
