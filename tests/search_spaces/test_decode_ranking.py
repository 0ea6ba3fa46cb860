"""The ranking of paged decode's configs: features against counting, networks against torch, valid candidates."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.device import NVIDIA_H200, Device
from autotune.search_spaces.networks import Networks
from autotune.search_spaces.paged_decode import decode_ranking
from autotune.search_spaces.paged_decode.decode_default import preferred
from autotune.search_spaces.paged_decode.decode_features import ConfigColumns, features, named_features
from autotune.search_spaces.paged_decode.decode_ranking import (
    candidates,
    choice_of,
    config_of,
    first_valid,
    is_ranked,
    ranked,
    read_networks,
)
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION, reject
from autotune.shape import PagedShape
from autotune.space import Config
from autotune.table import shipped_portfolios

SPACE = IMPLEMENTATION.space


def shape_of(**fields: Any) -> PagedShape:
    sizes = {"batch": 4, "heads": 32, "kv_heads": 8, "max_context": 8192, "head_dim": 128}
    return PagedShape(**{**sizes, **fields})


def a_config(**values: Any) -> Config:
    usual: dict[str, Any] = {
        "schedule": "split",
        "BLOCK_ROWS": 16,
        "HEADS": 2,
        "BLOCK_K": 64,
        "NUM_SPLITS": 8,
        "PROGRAMS_PER_SM": None,
    }
    usual |= {"COMBINE": "kernel", "PARTIALS": "float32", "num_warps": 4, "num_stages": 3}
    return Config({**usual, **dict.fromkeys(("waves_per_eu", "matrix_instr_nonkdim", "kpack")), **values})


def amounts(shape: PagedShape, config: Config) -> dict[str, float]:
    """Return the features of one config, all as if they were logarithms."""
    found = named_features(shape, NVIDIA_H200, ConfigColumns.of([config]))
    assert list(features(shape, NVIDIA_H200, ConfigColumns.of([config]))[0]) == [each[0] for each in found.values()]
    return {name: 2.0 ** float(each[0]) for name, each in found.items()}


def test_features_are_what_counting_says() -> None:
    """4 x 8 KV heads by two, in 5 splits: 80 programs, each of 52 tiles of 32 tokens in two arrays of 128 x 2 bytes."""
    found = amounts(shape_of(), a_config(NUM_SPLITS=5))
    tile = 64 * 2 * 128 * 2
    shared = 2 * tile + 16 * (128 + 64) * 2
    expected = {
        "programs of an SM": 80 / 132,
        "tokens": 32,
        "tiles of the longest": math.ceil(8192 / (5 * 32)),
        "tiles in the mean": 8192 / (5 * 32),
        "bytes of a tile": tile,
        "shared bytes": shared,
        "resident": NVIDIA_H200.architecture.shared_memory_bytes // shared,
        "bytes in flight": 2 * tile,
        "partial bytes": 5 * 4 * 32 * 128 * 4,
        "rounds": 2,  # to the power of one round
        "page size": 16,
        "sequences of an SM": 4 * 8 / 132,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_equal_shares_have_a_mean_of_tiles() -> None:
    config = a_config(schedule="flat", NUM_SPLITS=None, PROGRAMS_PER_SM=3, COMBINE=None, PARTIALS=None)
    found = amounts(shape_of(), config)
    evenly = 4 * 4 * 8192 / 32 / (3 * 132)  # 10.3 tiles of a program
    assert found["tiles in the mean"] == pytest.approx(evenly)
    assert found["tiles of the longest"] == pytest.approx(math.ceil(evenly))
    assert (found["flat"], found["4 warps"], found["8 warps"]) == (2.0, 2.0, 1.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_candidates_are_configs_of_the_space(dtype: str) -> None:
    """Nothing but their tile or amounts can be wrong for a shape; each is listed once."""
    listed, columns = candidates(dtype)
    assert len(set(listed)) == len(listed) == len(columns.rows)
    names = [parameter.name for parameter in SPACE.parameters]
    allowed = {parameter.name: {*parameter.values, None} for parameter in SPACE.parameters}
    for config in listed:
        assert list(config) == names
        assert all(config[name] in allowed[name] | {dtype} for name in names), config
    assert {config["PARTIALS"] for config in listed} == {"float32", dtype, None}


def test_the_first_valid_candidate_is_the_default() -> None:
    sizes = itertools.product((1, 7, 300), (1, 100, 8192, 10**6), ((8, 1), (32, 32), (71, 1)), (64, 96, 256))
    asked: list[dict[str, Any]] = [
        {},
        {"kv_dtype": "float8_e4m3fn"},
        {"dtype": "float16"},
        {"window": 128},
        {"layout": "HND", "softcap": True},
    ]
    devices = [replace(NVIDIA_H200, sm_count=count) for count in (132, 16, 114)]
    for place, (batch, context, (heads, kv_heads), head_dim) in enumerate(sizes):
        fields = {"batch": batch, "max_context": context, "mean_context": -(-context // 3), "head_dim": head_dim}
        fields |= {"heads": heads, "kv_heads": kv_heads, **asked[place % 5]}
        shape, device = shape_of(**fields), devices[place % 3]
        default = SPACE.default(shape, device)
        assert SPACE.why_invalid(default, shape, device) is None
        assert default == next(each for each in ranked(shape, device) if not SPACE.why_invalid(each, shape, device))


@pytest.mark.parametrize("fields", [{"seq_q": 4}, {"dtype": "float32"}, {"head_dim": 512}, {"kv_dtype": "int8"}])
def test_what_was_not_recorded_follows_the_rules(fields: dict[str, Any]) -> None:
    shape = shape_of(**fields)
    assert not is_ranked(shape, NVIDIA_H200)
    assert SPACE.default(shape, NVIDIA_H200) == preferred(shape, NVIDIA_H200)[0]
    a100 = replace(NVIDIA_H200, name="NVIDIA A100-SXM4-80GB", arch="sm_80")
    assert is_ranked(shape_of(), NVIDIA_H200)
    assert not is_ranked(shape_of(), a100)


def test_choices_of_recorded_shapes_are_what_networks_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds are asked for when tables are read: they ship, and no network runs for them."""
    runs: list[int] = []
    rank = Networks.rank

    def counted(networks: Networks, given: Any) -> Any:
        runs.append(len(given))
        return rank(networks, given)

    monkeypatch.setattr(Networks, "rank", counted)
    decode_ranking.forget()
    rows = [
        (row.shape, row.device)
        for row in shipped_portfolios("paged_decode", implementation="triton")
        if isinstance(row.shape, PagedShape) and is_ranked(row.shape, row.device)
    ]
    assert len(rows) > 400
    assert runs == []
    for shape, device in rows:
        SPACE.default(shape, device)
    assert runs == []
    for shape, device in rows[::40]:
        valid = [each for each in itertools.islice(ranked(shape, device), 9) if reject(each, shape, device) is None]
        assert first_valid(shape, device, reject) == valid[0], shape
        # The next one where a bound of today forbids it.
        assert (
            first_valid(shape, device, lambda *of, own=valid[0]: "forbidden" * (of[0] == own) or reject(*of))
            == valid[1]
        )


def test_choices_are_kept_as_configs() -> None:
    """Not as places in a list, which a longer list would move."""
    listed, _ = candidates("float16")
    assert all(config_of(choice_of(config), "float16") == config for config in listed)


def test_a_choice_is_made_once() -> None:
    shape = shape_of(batch=77)
    assert SPACE.default(shape, NVIDIA_H200) is SPACE.default(shape_of(batch=77), NVIDIA_H200)


def test_devices_of_one_identity_do_not_share_a_choice_that_depends_on_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def noted(shape: PagedShape, device: Device) -> Iterator[Config]:
        asked.append(device.memory_mib)
        yield a_config()

    monkeypatch.setattr(decode_ranking, "ranked", noted)
    decode_ranking.forget()
    less = replace(NVIDIA_H200, memory_mib=NVIDIA_H200.memory_mib - 1)
    assert less == NVIDIA_H200
    for device in (NVIDIA_H200, less, NVIDIA_H200, less):
        first_valid(shape_of(batch=77), device, reject)
    assert asked == [NVIDIA_H200.memory_mib, less.memory_mib]
    monkeypatch.undo()
    decode_ranking.forget()


def test_weights_are_finite_and_belong_to_the_features() -> None:
    networks = read_networks()
    given = features(shape_of(), NVIDIA_H200, candidates("bfloat16")[1])
    assert given.shape[1] == len(networks.low) == networks.first.shape[1] - 1
    assert all(np.isfinite(array).all() for array in networks)
    assert np.isfinite(networks.rank(given)).all()
