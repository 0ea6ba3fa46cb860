"""Fitting what ranks candidates of dense attention: of both implementations, kept by each, and what ships."""

import math
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from autotune.device import NVIDIA_H200
from autotune.registry import get_implementation
from autotune.search_spaces.flash_attention import hopper_ranking
from autotune.search_spaces.flash_attention.hopper_features import GLUON, TRITON, features
from autotune.search_spaces.flash_attention.hopper_ranking import candidate_of, read_networks
from autotune.search_spaces.networks import name_of
from autotune.shape import AttentionShape
from autotune.trial import Candidate
from benchmarks import fit_dense, fitted_defaults, network_fit
from benchmarks.network_fit import FittedShape

IMPLEMENTATIONS = {name: get_implementation("flash_attention", name) for name in (GLUON, TRITON)}


def recording(seq: int, **fields: Any) -> FittedShape:
    """A shape of which ``triton`` is half as fast, and of both the first configs are the best."""
    shape = AttentionShape(batch=2, heads=8, seq_q=seq, head_dim=64, **fields)
    candidates, losses = [], []
    for name, behind in ((GLUON, 0.0), (TRITON, math.log(2))):
        for place, config in zip(range(10), IMPLEMENTATIONS[name].space.configs(shape, NVIDIA_H200), strict=False):
            candidates.append(Candidate(name, config))
            losses.append(behind + 0.02 * place)
    given = features(shape, NVIDIA_H200, candidates)
    return FittedShape(shape, NVIDIA_H200, tuple(candidates), given, np.array(losses))


RECORDINGS = [recording(seq) for seq in (2048, 3072, 4096, 5120)]


def test_each_implementation_keeps_what_it_loses_against_its_own_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "networks.npz"
    ranks = np.arange(20, dtype=np.float32)
    ranks[[3, 15]] = -1.0, -2.0  # the fourth of one, the sixth of the other
    networks = network_fit.fit(RECORDINGS, 1)
    fit_dense.save(networks, RECORDINGS, [(each, ranks) for each in RECORDINGS], path)
    for name in (GLUON, TRITON):
        monkeypatch.setitem(fitted_defaults.FITTED, f"flash_attention/{name}", path)
    shape, lost = RECORDINGS[0].shape, fitted_defaults.left_out_loss
    assert lost(IMPLEMENTATIONS[GLUON], shape, NVIDIA_H200) == pytest.approx(math.expm1(0.06))
    assert lost(IMPLEMENTATIONS[TRITON], shape, NVIDIA_H200) == pytest.approx(math.expm1(0.1))
    assert fitted_defaults.is_fitted(IMPLEMENTATIONS[TRITON], shape)
    assert not fitted_defaults.is_fitted(IMPLEMENTATIONS[TRITON], recording(640).shape)
    with np.load(path, allow_pickle=False) as arrays:
        listed = [candidate_of(text) for text in arrays["candidates"].tolist()]
        assert arrays["classes"].tolist() == [[64, 64, 0, 0, 0]]
    near = Counter(each.candidates[place] for each in RECORDINGS for place in (0, 1, 10, 11))  # of each one's best
    assert set(listed) == {candidate for candidate, count in near.items() if count >= fit_dense.LEAST_SHAPES}
    assert {each.implementation for each in listed} == {GLUON, TRITON}


def test_a_class_of_few_shapes_is_not_ranked() -> None:
    few = [recording(seq, causal=True, window=100) for seq in (2048, 3072, 4096)]
    assert fit_dense.classes_of([*RECORDINGS, *few]) == [(64, 64, False, False, False)]
    assert fit_dense.classes_of([*RECORDINGS, *few, few[0]]) == [(64, 64, False, False, False)]  # three shapes still


def test_what_ships_was_fitted_to_what_is_recorded() -> None:
    """In sample: that the networks belong to these features and this order, not how near new shapes are."""
    recordings = fit_dense.read()
    fitted = fit_dense.join(recordings)
    with np.load(fitted_defaults.HOPPER_NETWORKS, allow_pickle=False) as arrays:
        left_out, listed = set(arrays["left_out"].tolist()), arrays["candidates"].tolist()
        classes, recorded = list(map(tuple, arrays["classes"].tolist())), set(arrays["recorded"].tolist())
    names = {name_of(own.implementation, each.shape, each.device) for each in fitted for own in each.candidates}
    assert names == left_out, "run benchmarks.fit_dense"
    assert classes == fit_dense.classes_of(fitted)
    assert recorded == {
        name_of(name, each.shape, each.device)
        for each in (each for own in recordings.values() for each in own)
        for name, implementation in IMPLEMENTATIONS.items()
        if isinstance(each.shape, AttentionShape)
        and hopper_ranking.is_ranked(each.shape, each.device)
        and implementation.supports(each.shape, each.device) is None
    }
    assert [candidate_of(text) for text in listed] == fit_dense.choose_candidates(fitted)
    given, networks = np.concatenate([each.given for each in fitted]), read_networks()
    np.testing.assert_allclose(given.mean(axis=0), networks.mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose((given.min(axis=0), given.max(axis=0)), (networks.low, networks.high), rtol=1e-4)
    regrets = []
    for each in fitted:
        own = {candidate.implementation for candidate in each.candidates}
        chosen = [Candidate(name, IMPLEMENTATIONS[name].space.default(each.shape, each.device)) for name in own]
        losses = [each.losses[each.candidates.index(config)] for config in chosen if config in each.candidates]
        if len(losses) == len(own):
            regrets.append(math.expm1(min(losses)))
    assert len(regrets) > 100
    assert median(regrets) < 0.02
    assert sum(regret > 0.08 for regret in regrets) < 0.06 * len(regrets)
