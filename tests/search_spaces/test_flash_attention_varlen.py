"""The space of packed sequences: its default everywhere, what it rejects and why, and its cost against counting."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from autotune.device import ARCHITECTURES, NVIDIA_H200
from autotune.dtypes import QUERY_DTYPES
from autotune.search_spaces.flash_attention_varlen.operation import cost, lengths_of
from autotune.search_spaces.flash_attention_varlen.triton import IMPLEMENTATION
from autotune.search_spaces.lengths import spread_lengths
from autotune.space import Config
from autotune.varlen_shape import VarlenShape

SPACE = IMPLEMENTATION.space
DEVICES = {arch: replace(NVIDIA_H200, name=arch, arch=arch) for arch in (*ARCHITECTURES, "sm_999", "gfx9999")}


def shape_of(**fields: Any) -> VarlenShape:
    sizes = {"batch": 16, "heads": 32, "kv_heads": 8, "max_seq_q": 4096, "mean_seq_q": 900, "head_dim": 128}
    return VarlenShape(**{**sizes, **fields})


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_the_default_is_a_valid_config_everywhere(device: Any) -> None:
    for batch, longest, width, dtype in itertools.product((1, 300), (1, 15, 10_000), (8, 72, 128, 256), QUERY_DTYPES):
        for heads, kv_heads in ((1, 1), (71, 1), (128, 128)):
            sizes = {"batch": batch, "max_seq_q": longest, "mean_seq_q": (longest + 1) // 2, "head_dim": width}
            shape = shape_of(**sizes, heads=heads, kv_heads=kv_heads, dtype=dtype)
            assert SPACE.why_invalid(SPACE.default(shape, device), shape, device) is None, shape


def test_what_people_write_by_hand() -> None:
    (config,) = SPACE.heuristics(shape_of(causal=True), NVIDIA_H200)
    values = (config["BLOCK_Q"], config["BLOCK_K"], config["num_warps"], config["sequences"], config["loads"])
    assert values == (128, 64, 4, "packed", "descriptor")
    assert SPACE.why_invalid(config, shape_of(causal=True), NVIDIA_H200) is None
    assert SPACE.heuristics(shape_of(dtype="float32"), NVIDIA_H200) == ()


@pytest.mark.parametrize("arch", ["sm_86", "sm_90", "gfx942"])
def test_configs_are_valid_unique_and_hold_the_default(arch: str) -> None:
    device, shape = DEVICES[arch], shape_of()
    configs = list(SPACE.configs(shape, device))
    assert len(configs) == len(set(configs)) > 100
    assert SPACE.default(shape, device) in configs
    assert all(len(SPACE.hints(config, shape, device)) == 5 for config in configs)


@pytest.mark.parametrize(
    ("fields", "tile"),
    [
        ({}, (64, 64, 4, 3, "head", "descriptor")),
        ({"causal": True, "window": 128}, (64, 32, 4, 3, "head", "descriptor")),
        ({"batch": 4, "max_seq_q": 512, "mean_seq_q": 128}, (64, 64, 4, 3, "tile", "descriptor")),  # few tiles
        ({"head_dim": 64}, (64, 32, 4, 3, "tile", "pointer")),
        ({"head_dim": 64, "window": 65}, (64, 16, 4, 2, "tile", "pointer")),
        ({"head_dim": 192, "head_dim_v": 128}, (64, 32, 4, 3, "tile", "pointer")),
        ({"head_dim": 256}, (128, 32, 8, 3, "head", "pointer")),
    ],
    ids=str,
)
def test_the_default_on_hopper_is_what_recordings_chose(fields: dict[str, Any], tile: tuple[Any, ...]) -> None:
    config = SPACE.default(shape_of(**fields), NVIDIA_H200)
    names = ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages", "order", "loads")
    assert tuple(config[name] for name in names) == tile
    assert config["sequences"] == "packed"


@pytest.mark.parametrize(("fields", "arch"), [({"dtype": "float32"}, "sm_90"), ({"head_dim": 64}, "sm_100")])
def test_what_was_not_recorded_keeps_the_tile_of_dense_attention(fields: dict[str, Any], arch: str) -> None:
    config = SPACE.default(shape_of(**fields), DEVICES[arch])
    expected = (64, 32, 4, 1) if "dtype" in fields else (128, 64, 8, 3)
    assert tuple(config[name] for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")) == expected
    assert (config["sequences"], config["order"], config["loads"]) == ("longest", "head", "pointer")


TILE: dict[str, Any] = {"BLOCK_Q": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
VALID = Config(**TILE, sequences="longest", order="head", loads="pointer")


@pytest.mark.parametrize(
    ("change", "shape", "arch", "reason"),
    [
        ({}, {}, "sm_90", None),
        ({}, {"mean_seq_q": 4096}, "sm_90", "sequences='longest' does not pay: all are equally long"),
        ({}, {"batch": 1}, "sm_90", "sequences='longest' does not pay: all are equally long"),
        ({}, {"mean_seq_q": 4096, "mean_seq_kv": 9}, "sm_90", None),
        ({}, {"max_seq_q": 9, "mean_seq_q": 2}, "sm_90", "BLOCK_Q=128 is longer than the padded 36 rows of a KV head"),
        ({}, {"max_seq_kv": 32}, "sm_90", "BLOCK_K=64 is longer than the padded length of 32"),
        ({"BLOCK_Q": 64}, {}, "sm_90", "8 warps would share 64 rows; each needs 16"),
        ({"BLOCK_Q": 256, "num_warps": 4}, {}, "sm_90", "384 fp32 values a thread stay live"),
        ({"num_stages": 5}, {}, "sm_86", "K and V tiles take 131072 bytes of shared memory, sm_86 has 101376"),
        ({}, {}, "gfx942", "num_stages above 2 does not pay on gfx942"),
    ],
)  # fmt: skip
def test_reject_names_the_value_and_the_limit(
    change: dict[str, Any], shape: dict[str, Any], arch: str, reason: str | None
) -> None:
    found = SPACE.reject(Config({**VALID, **change}), shape_of(**shape), DEVICES[arch])
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(
    ("batch", "longest", "mean"),
    [(1, 900, 7), (7, 900, 900), (64, 8192, 1000), (100, 8192, 5000), (2, 50, 25), (9, 8, 1)],
)
def test_lengths_have_the_longest_and_the_mean(batch: int, longest: int, mean: int) -> None:
    lengths = spread_lengths(batch, longest, mean)
    assert len(lengths) == batch
    assert sorted(lengths) == list(lengths)
    assert lengths[0] >= 1
    assert lengths[-1] == longest
    expected = longest if batch == 1 else max(mean, longest / batch)
    assert sum(lengths) / batch == pytest.approx(expected, rel=0.05, abs=1.5)


def test_who_has_the_most_queries_has_the_most_keys() -> None:
    found = lengths_of(shape_of(batch=3, max_seq_q=30, mean_seq_q=20, max_seq_kv=600, mean_seq_kv=300))
    assert [pair[0] for pair in found] == sorted(pair[0] for pair in found)
    assert [pair[1] for pair in found] == sorted(pair[1] for pair in found)
    assert found[-1] == (30, 600)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize(("queries", "keys"), [(20, 20), (12, 30), (30, 12)])
def test_cost_is_what_counting_says(queries: int, keys: int, window: int | None, causal: bool) -> None:
    shape = shape_of(batch=5, max_seq_q=queries, mean_seq_q=7, max_seq_kv=keys, mean_seq_kv=6, head_dim_v=64)
    shape = replace(shape, window=window, causal=causal)
    pairs = seen_keys = 0
    for count, length in lengths_of(shape):
        seen = [
            (query, key)
            for query in range(length - count, length)
            for key in range(length)
            if (key <= query or not causal) and (window is None or abs(query - key) < window)
        ]
        pairs += len(seen)
        seen_keys += length if window is None else min(length, count + window - 1)
    assert cost(shape).flops == 2 * 32 * pairs * (128 + 64)
    tokens = sum(count for count, _ in lengths_of(shape))
    assert cost(shape).bytes == (32 * tokens + 8 * seen_keys) * (128 + 64) * 2


def test_uneven_lengths_cost_more_than_their_mean() -> None:
    uneven, even = cost(shape_of()), cost(shape_of(max_seq_q=900))
    assert uneven.flops > 1.5 * even.flops
