"""The ranking of dense attention's candidates on Hopper: features against counting, valid candidates, kept choices."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.device import NVIDIA_H200
from autotune.registry import get_implementation
from autotune.search_spaces.flash_attention import hopper_ranking
from autotune.search_spaces.flash_attention.hopper_features import (
    ESTIMATE,
    GLUON,
    PARAMETERS,
    TRITON,
    features,
    named_features,
)
from autotune.search_spaces.flash_attention.hopper_ranking import (
    candidate_of,
    candidates,
    first_valid,
    is_ranked,
    ranked,
    read_networks,
    text_of,
)
from autotune.search_spaces.flash_attention.tile_work import rough_tiles
from autotune.search_spaces.networks import Networks
from autotune.shape import AttentionShape
from autotune.space import Config, Value
from autotune.table import shipped_portfolios
from autotune.trial import Candidate

IMPLEMENTATIONS = {name: get_implementation("flash_attention", name) for name in (GLUON, TRITON)}
A100 = replace(NVIDIA_H200, name="NVIDIA A100-SXM4-80GB", arch="sm_80")
GLUON_CONFIG: dict[str, Value] = {
    "consumers": 2,
    "BLOCK_K": 128,
    "slots": 2,
    "query_slots": 2,
    "ping_pong": "issue",
    "values": "early",
}
GLUON_CONFIG |= {"results": "own", "workers": "sm", "section": 1, "row_order": "natural"}
TRITON_CONFIG: dict[str, Value] = {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3, "loads": "descriptor"}


def shape_of(**fields: Any) -> AttentionShape:
    sizes = {"batch": 3, "heads": 32, "kv_heads": 8, "seq_q": 1000, "head_dim": 128}
    return AttentionShape(**{**sizes, **fields})


def amounts(shape: AttentionShape, candidate: Candidate) -> dict[str, float]:
    """Return the features of one candidate, all as if they were logarithms."""
    found = named_features(shape, NVIDIA_H200, candidate)
    assert list(features(shape, NVIDIA_H200, [candidate])[0]) == pytest.approx(list(found.values()))
    assert list(found)[ESTIMATE] == "end over products"
    return {name: 2.0**value for name, value in found.items()}


def test_features_are_what_counting_says() -> None:
    """96 heads of 8 tiles of 128 rows, by 132 workers: six tiles or five each."""
    shape = shape_of()
    found = amounts(shape, Candidate(GLUON, Config(GLUON_CONFIG)))
    expected = {
        "heads": 96,
        "group": 4,
        "keys of a row": 1000,
        "tiles of a head": 8,
        "tiles of an SM": 768 / 132,
        "tiles of a program": 768 / 132,
        "unevenness of programs": 6 / (768 / 132),
        "rows with empty ones": 1024 / 1000,
        "keys with empty ones": 1024 / 1000,
        "bytes of the keys of a head": 1000 * 2 * 128 * 2 / 50e6,
        "bytes of all keys": 3 * 8 * 1000 * 2 * 128 * 2 / 50e6,
        "gluon": 2,
        "gluon_hopper consumers 2": 2,
        "gluon_hopper consumers 3": 1,
        "triton BLOCK_K 128": 1,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    tile = rough_tiles(shape, 128, 128)[0]
    assert found["longest tile over even share"] == pytest.approx(132 / 768)
    assert found["end"] == pytest.approx(6 * tile + 2.5 + 2.0)


def test_an_even_share_and_the_longest_tile_end_triton() -> None:
    shape = shape_of(causal=True)
    found = amounts(shape, Candidate(TRITON, Config(TRITON_CONFIG)))
    tiles = 1.5 * rough_tiles(shape, 64, 64)
    assert len(tiles) == 16
    assert found["end"] == pytest.approx(2.0 + 96 * tiles.sum() / 132 + tiles.max())
    assert found["resident"] == 228 * 1024 // ((64 + 2 * 3 * 64) * 128 * 2)


@pytest.mark.parametrize("seq_kv", [500, 501, 560, 2000])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 100)])
def test_products_are_of_scores_that_are_seen(causal: bool, window: int | None, seq_kv: int) -> None:
    shape = shape_of(seq_q=500, seq_kv=seq_kv, causal=causal, window=window)
    diagonals = [row + seq_kv - 500 for row in range(500)]
    pairs = sum(
        sum((not causal or key <= diagonal) and (window is None or diagonal - key < window) for key in range(seq_kv))
        for diagonal in diagonals
    )
    found = amounts(shape, Candidate(GLUON, Config(GLUON_CONFIG)))
    assert found["products"] == pytest.approx(1 + 2 * pairs * 96 * 256 / 7.5e6 / 132)


def test_every_value_of_a_parameter_is_a_feature() -> None:
    for name, parameters in PARAMETERS.items():
        own = {each.name: each.values for each in IMPLEMENTATIONS[name].space.parameters}
        assert {parameter: set(values) for parameter, values in parameters.items()} == {
            parameter: {value for value in own[parameter] if value is not None} for parameter in parameters
        }


def test_candidates_are_configs_of_their_spaces() -> None:
    assert len(set(candidates())) == len(candidates())
    assert {each.implementation for each in candidates()} == {GLUON, TRITON}
    for each in candidates():
        space = IMPLEMENTATIONS[each.implementation].space
        assert space.why_outside(each.config, NVIDIA_H200) is None
        assert candidate_of(text_of(each)) == each


@pytest.mark.parametrize("name", [GLUON, TRITON])
def test_the_first_valid_candidate_is_the_default(name: str) -> None:
    space = IMPLEMENTATIONS[name].space
    sizes = itertools.product((1, 7), (129, 1000, 30_000), ((8, 1), (32, 32)), (64, 96, 128, 256))
    for place, (batch, seq, (heads, kv_heads), head_dim) in enumerate(sizes):
        fields: dict[str, Any] = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_q": seq}
        shape = shape_of(**fields, head_dim=head_dim, causal=bool(place % 2))
        device = replace(NVIDIA_H200, sm_count=(132, 16, 114)[place % 3])
        default = space.default(shape, device)
        assert space.why_invalid(default, shape, device) is None
        if not is_ranked(shape, device):
            assert head_dim == 96  # too few are recorded
            continue
        own = (each.config for each in ranked(shape, device) if each.implementation == name)
        assert default == next(each for each in own if not space.why_invalid(each, shape, device))
        estimates = [
            space.estimate(each.config, shape, device) for each in ranked(shape, device) if each.implementation == name
        ]
        known = [each for each in estimates if each is not None]
        assert known == sorted(known)


@pytest.mark.parametrize(
    "fields",
    [
        *(
            {"seq_q": 64},
            {"seq_q": 300, "seq_kv": 200},
            {"dtype": "float32"},
            {"sinks": True},
            {"attn_mask": "boolean"},
        ),
        *({"softcap": True, "head_dim": 64}, {"window": 100}, {"head_dim": 512}),
    ],
    ids=str,
)
def test_what_was_not_recorded_is_not_ranked(fields: dict[str, Any]) -> None:
    assert is_ranked(shape_of(), NVIDIA_H200)
    assert not is_ranked(shape_of(), A100)
    assert not is_ranked(shape_of(**fields), NVIDIA_H200)


def test_choices_of_recorded_shapes_are_what_networks_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds are asked for when tables are read: they ship, and no network runs for them."""
    runs: list[int] = []
    rank = Networks.rank

    def counted(networks: Networks, given: Any) -> Any:
        runs.append(len(given))
        return rank(networks, given)

    monkeypatch.setattr(Networks, "rank", counted)
    hopper_ranking.forget()
    for name, implementation in IMPLEMENTATIONS.items():
        rows = [
            (row.shape, row.device)
            for row in shipped_portfolios("flash_attention", implementation=name)
            if isinstance(row.shape, AttentionShape) and is_ranked(row.shape, row.device)
        ]
        assert len(rows) > 250
        for shape, device in rows:
            implementation.space.default(shape, device)
        assert runs == []
        for shape, device in rows[::40]:
            own = [each.config for each in ranked(shape, device) if each.implementation == name]
            valid = [each for each in own if implementation.space.reject(each, shape, device) is None]
            assert implementation.space.default(shape, device) == valid[0]

            def forbids(config: Config, *of: Any, best: Config = valid[0], space: Any = implementation.space) -> Any:
                return "forbidden" if config == best else space.reject(config, *of)

            assert first_valid(name, shape, device, forbids) == valid[1]
        runs.clear()


def test_devices_of_one_identity_do_not_share_a_rank_that_depends_on_their_memory() -> None:
    less = replace(NVIDIA_H200, memory_mib=NVIDIA_H200.memory_mib // 2)
    assert replace(less, memory_mib=NVIDIA_H200.memory_mib) == NVIDIA_H200
    shape = shape_of(batch=5)
    assert list(ranked(shape, NVIDIA_H200).values()) != list(ranked(shape, less).values())


def test_weights_are_finite_and_belong_to_the_features() -> None:
    networks = read_networks()
    given = features(shape_of(), NVIDIA_H200, candidates())
    assert given.shape[1] == len(networks.low) == networks.first.shape[1] - 1
    assert all(np.isfinite(array).all() for array in networks)
    assert all(math.isfinite(rank) for rank in ranked(shape_of(), NVIDIA_H200).values())
