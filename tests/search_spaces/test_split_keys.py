"""The space of attention over split keys: its default everywhere, what it rejects and why, its splits."""

import itertools
from dataclasses import replace
from typing import Any, Final

import pytest

from autotune.device import ARCHITECTURES, NVIDIA_H200, Device
from autotune.dtypes import QUERY_DTYPES
from autotune.errors import InvalidShapeError
from autotune.search_spaces.flash_attention.triton_split_keys import (
    IMPLEMENTATION,
    keys_seen,
    splits_of_flash_attention_2,
)
from autotune.shape import AttentionShape
from autotune.space import Config

SPACE: Final = IMPLEMENTATION.space
DEVICES: Final = {arch: replace(NVIDIA_H200, name=arch, arch=arch) for arch in (*ARCHITECTURES, "sm_999", "gfx9999")}
SM_COUNTS: Final = (1, 132, 304)


def shape_of(**fields: Any) -> AttentionShape:
    sizes = {"batch": 1, "heads": 32, "kv_heads": 8, "seq_q": 16, "seq_kv": 32768, "head_dim": 128}
    return AttentionShape(**{**sizes, **fields})


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_the_default_is_a_valid_config_everywhere(device: Device) -> None:
    lengths = itertools.product((1, 7, 64), (1, 17, 300, 100_000))
    sizes = itertools.product(lengths, (8, 72, 128, 256), QUERY_DTYPES, (1, 100), SM_COUNTS)
    for (seq_q, seq_kv), head_dim, dtype, batch, sm_count in sizes:
        some = replace(device, sm_count=sm_count)
        shape = shape_of(batch=batch, seq_q=seq_q, seq_kv=seq_kv, head_dim=head_dim, dtype=dtype)
        for each in (shape, replace(shape, heads=7, kv_heads=1, window=5, causal=True, head_dim_v=64)):
            assert SPACE.why_invalid(SPACE.default(each, some), each, some) is None, each


@pytest.mark.parametrize(
    ("fields", "rows", "splits"),
    [
        ({}, 64, 32),  # 256 programs for 132 SMs
        ({"seq_q": 1}, 16, 32),
        ({"seq_q": 64}, 128, 16),
        ({"batch": 4}, 64, 8),
        ({"batch": 64}, 64, 1),
        ({"seq_kv": 1024}, 64, 4),  # 16 tiles
        ({"window": 1024, "causal": True}, 64, 4),
        ({"heads": 4, "kv_heads": 1}, 64, 128),  # the most there are
    ],
    ids=str,
)
def test_the_default_has_two_programs_an_sm_or_four_tiles_a_share(
    fields: dict[str, Any], rows: int, splits: int
) -> None:
    config = SPACE.default(shape_of(**fields), NVIDIA_H200)
    assert (config["BLOCK_Q"], config["BLOCK_K"], config["NUM_SPLITS"]) == (rows, 64, splits)


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [({}, 500, 1000), ({"batch": 4}, 300, 700), ({"seq_q": 1}, 300, 700), ({"dtype": "float32"}, 300, 1000)],
    ids=str,
)
def test_the_space_has_some_hundreds_of_configs(fields: dict[str, Any], least: int, most: int) -> None:
    shape = shape_of(**fields)
    configs = list(SPACE.configs(shape, NVIDIA_H200))
    assert least < len(configs) == len(set(configs)) < most
    assert SPACE.default(shape, NVIDIA_H200) in configs


@pytest.mark.parametrize("fields", [{}, {"causal": True}, {"window": 9}, {"window": 9, "causal": True}], ids=str)
@pytest.mark.parametrize("lengths", [(1, 1), (1, 30), (7, 30), (30, 30), (30, 7)])
def test_keys_seen_are_those_that_some_query_sees(lengths: tuple[int, int], fields: dict[str, Any]) -> None:
    seq_q, seq_kv = lengths
    shape = shape_of(seq_q=seq_q, seq_kv=seq_kv, **fields)
    seen = {
        key
        for query, key in itertools.product(range(seq_q), range(seq_kv))
        if (ahead := key - query - seq_kv + seq_q) <= 0 or not shape.causal
        if shape.window is None or abs(ahead) < shape.window
    }
    assert keys_seen(shape) == len(seen)


REFUSED: Final[list[tuple[dict[str, Any], str]]] = [
    ({"BLOCK_Q": 128}, "BLOCK_Q=128 is longer than the padded 64 rows"),
    ({"BLOCK_Q": 16}, "BLOCK_Q=16 reads the keys 4 times for 64 rows, more than twice the 1 it takes"),
    ({"BLOCK_K": 16}, "BLOCK_K=16 is shorter than 32"),
    ({"num_warps": 2}, "num_warps=2 is no group of 4"),
    ({"BLOCK_Q": 32, "num_warps": 8}, "num_warps=8 is more than the 4 that BLOCK_Q=32 has rows for"),
    ({"num_stages": 1}, "num_stages=1 has no load in flight"),
    ({"PARTIALS": "float16"}, "PARTIALS=float16 is neither float32 nor the dtype, bfloat16"),
    ({"PARTIALS": "bfloat16", "NUM_SPLITS": 6}, "PARTIALS=bfloat16 of NUM_SPLITS=6, fewer than 8"),
    ({"NUM_SPLITS": 96}, "NUM_SPLITS=96 makes 768 programs, more than 4 for each of 132 SMs"),
    ({"NUM_SPLITS": 6}, "NUM_SPLITS=6 makes 48 programs, which leave most of 132 SMs idle"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=str)
def test_what_cannot_pay_is_rejected_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    config = SPACE.default(shape_of(), NVIDIA_H200)
    found = SPACE.why_invalid(Config({**config, **changes}), shape_of(), NVIDIA_H200)
    assert found is not None
    assert found.startswith(reason)


def test_splits_have_two_tiles_each_and_descriptors_need_tensor_maps() -> None:
    short = shape_of(seq_kv=300)
    config = Config({**SPACE.default(short, NVIDIA_H200), "NUM_SPLITS": 3})
    assert SPACE.reject(config, short, NVIDIA_H200) == (
        "NUM_SPLITS=3 of 5 tiles: a share of one has nothing to load while it is computed"
    )
    found = SPACE.reject(SPACE.default(short, NVIDIA_H200), short, DEVICES["sm_80"])
    assert found == "loads=descriptor needs tensor maps, which sm_80 does not have"


def test_more_queries_are_not_supported() -> None:
    shape, reason = shape_of(seq_q=65), "flash_attention/triton_split_keys computes at most 64 queries, not seq_q=65"
    assert IMPLEMENTATION.supports(shape, NVIDIA_H200) == reason
    assert SPACE.reject(SPACE.default(shape_of(), NVIDIA_H200), shape, NVIDIA_H200) == reason
    assert SPACE.heuristics(shape, NVIDIA_H200) == ()
    with pytest.raises(InvalidShapeError, match=reason):
        SPACE.default(shape, NVIDIA_H200)


@pytest.mark.parametrize(
    ("lanes", "places", "tiles", "splits"),
    [
        (212, 264, 256, 1),  # 0.8 of the places
        (8, 264, 256, 29),  # 232 of 264 places; 28 splits of 256 tiles have as many tiles each as 27
        (1, 264, 4, 4),
        (1, 264, 1, 1),
        (200, 264, 256, 5),  # 1000 programs in four rounds of 264; up to four splits have a round each, 0.76 full
    ],
)
def test_splits_of_flash_attention_2(lanes: int, places: int, tiles: int, splits: int) -> None:
    assert splits_of_flash_attention_2(lanes, places, tiles) == splits


@pytest.mark.parametrize(
    ("fields", "rows", "block_k", "splits"),
    [({}, 64, 128, 24), ({"seq_q": 1}, 16, 128, 24), ({"head_dim": 256}, 64, 64, 24), ({"head_dim": 64}, 64, 128, 32)],
    ids=str,
)
def test_what_people_write_by_hand(fields: dict[str, Any], rows: int, block_k: int, splits: int) -> None:
    shape = shape_of(**fields)
    (config,) = SPACE.heuristics(shape, NVIDIA_H200)
    assert (config["BLOCK_Q"], config["BLOCK_K"], config["NUM_SPLITS"]) == (rows, block_k, splits)
    assert SPACE.why_invalid(config, shape, NVIDIA_H200) is None
    assert SPACE.heuristics(replace(shape, dtype="float32"), NVIDIA_H200) == ()


def test_hints_are_finite_and_tell_configs_apart() -> None:
    shape = shape_of()
    configs = list(SPACE.configs(shape, NVIDIA_H200))
    found = {SPACE.hints(config, shape, NVIDIA_H200) for config in configs}
    assert {len(each) for each in found} == {4}
    assert len(found) > 100
