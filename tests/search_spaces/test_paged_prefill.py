"""The space of paged prefill: its default everywhere, what it rejects and why, and its cost against counting."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from autotune.device import ARCHITECTURES, NVIDIA_H200
from autotune.dtypes import QUERY_DTYPES
from autotune.errors import InvalidShapeError
from autotune.search_spaces.paged_prefill.operation import cost
from autotune.search_spaces.paged_prefill.triton import IMPLEMENTATION
from autotune.shape import PagedShape
from autotune.space import Config

SPACE = IMPLEMENTATION.space
DEVICES = {arch: replace(NVIDIA_H200, name=arch, arch=arch) for arch in (*ARCHITECTURES, "sm_999", "gfx9999")}


def shape_of(**fields: Any) -> PagedShape:
    sizes = {"batch": 4, "heads": 32, "kv_heads": 8, "seq_q": 512, "max_context": 8192, "head_dim": 128}
    return PagedShape(**{**sizes, **fields})


def test_what_people_write_by_hand() -> None:
    for heads, rows in ((32, 16), (8, 16), (256, 32)):
        (config,) = SPACE.heuristics(shape_of(heads=heads), NVIDIA_H200)
        assert (config["BLOCK_Q"], config["BLOCK_K"], config["order"]) == (rows, 32, "head")
        assert SPACE.why_invalid(config, shape_of(heads=heads), NVIDIA_H200) is None


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_the_default_is_a_valid_config_everywhere(device: Any) -> None:
    sizes = itertools.product((1, 300), (1, 15, 100_000), (8, 72, 128, 256, 512), QUERY_DTYPES, (1, 2048))
    for batch, context, head_dim, dtype, seq_q in sizes:
        for heads, kv_heads in ((1, 1), (71, 1), (128, 128)):
            shape = shape_of(batch=batch, max_context=context, head_dim=head_dim, dtype=dtype, seq_q=seq_q)
            shape = replace(shape, heads=heads, kv_heads=kv_heads)
            assert SPACE.why_invalid(SPACE.default(shape, device), shape, device) is None, shape


def test_the_default_refuses_what_the_kernel_cannot() -> None:
    shape = shape_of(kv_dtype="int8")
    with pytest.raises(InvalidShapeError, match="kv_dtype='int8' is not supported by paged_prefill; expected that of"):
        SPACE.default(shape, NVIDIA_H200)
    assert list(SPACE.configs(shape, NVIDIA_H200)) == []


@pytest.mark.parametrize("arch", ["sm_86", "sm_90", "gfx942"])
def test_configs_are_valid_unique_and_hold_the_default(arch: str) -> None:
    device, shape = DEVICES[arch], shape_of()
    configs = list(SPACE.configs(shape, device))
    assert len(configs) == len(set(configs)) > 100
    assert SPACE.default(shape, device) in configs
    assert all(len(SPACE.hints(config, shape, device)) == 5 for config in configs)


@pytest.mark.parametrize(
    ("fields", "arch", "tile"),
    [
        ({"head_dim": 64}, "sm_90", (128, 64, 4, 3)),
        ({}, "sm_90", (128, 64, 8, 3)),  # with more keys registers spill
        ({"head_dim": 192, "head_dim_v": 128}, "sm_90", (128, 64, 8, 3)),
        ({"head_dim": 256}, "sm_90", (128, 32, 8, 3)),
        ({"dtype": "float32"}, "sm_90", (32, 16, 8, 3)),
        ({}, "sm_80", (64, 32, 4, 3)),
    ],
)
def test_the_default_has_as_many_keys_as_shared_memory_holds_three_tiles_of(
    fields: dict[str, Any], arch: str, tile: tuple[int, int, int, int]
) -> None:
    config = SPACE.default(shape_of(**fields), DEVICES[arch])
    assert tuple(config[name] for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")) == tile
    assert config["order"] == "tile"


VALID = Config({**SPACE.default(shape_of(), NVIDIA_H200), "BLOCK_K": 64, "num_warps": 8})


@pytest.mark.parametrize(
    ("change", "shape", "arch", "reason"),
    [
        ({}, {}, "sm_90", None),
        ({}, {"batch": 1, "seq_q": 9}, "sm_90", "BLOCK_Q=128 is longer than the padded 36 rows of a KV head"),
        ({}, {"batch": 64, "seq_q": 1}, "sm_90", None),  # they may be one sequence's
        ({}, {"max_context": 32}, "sm_90", "BLOCK_K=64 is longer than the padded context of 32"),
        ({"BLOCK_Q": 16, "num_warps": 4}, {}, "sm_90", "SMALL_Q=16 is not less than BLOCK_Q=16"),
        ({}, {"batch": 1}, "sm_90", "SMALL_Q=16 does not pay: a single sequence has one short tile at most"),
        ({"SMALL_Q": 0}, {"batch": 1}, "sm_90", None),
        ({"BLOCK_Q": 16, "SMALL_Q": 0}, {}, "sm_90", "8 warps would share 16 rows; each needs 4"),
        ({"BLOCK_Q": 256, "num_warps": 4}, {}, "sm_90", "384 fp32 values a thread stay live"),
        ({"BLOCK_Q": 16, "BLOCK_K": 256, "SMALL_Q": 0, "num_warps": 1}, {}, "sm_90", "256 loads of 16 bytes a tile"),
        ({"num_stages": 5}, {}, "sm_86", "K and V tiles take 131072 bytes of shared memory, sm_86 has 101376"),
        ({"num_stages": 3}, {}, "gfx942", "num_stages above 2 does not pay on gfx942"),
        ({}, {"kv_dtype": "int8"}, "sm_90", "kv_dtype='int8' is not supported"),
    ],
)  # fmt: skip
def test_reject_names_the_value_and_the_limit(
    change: dict[str, Any], shape: dict[str, Any], arch: str, reason: str | None
) -> None:
    found = SPACE.reject(Config({**VALID, **change}), shape_of(**shape), DEVICES[arch])
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("seq_q", [1, 3, 40])
@pytest.mark.parametrize("context", [1, 2, 5, 50])
@pytest.mark.parametrize("width", [128, 512])
def test_cost_is_what_counting_says(context: int, seq_q: int, window: int | None, width: int) -> None:
    shape = shape_of(max_context=context, seq_q=seq_q, window=window, head_dim=width, head_dim_v=64)
    seen = [
        (query, key)
        for query in range(context - seq_q, context)
        for key in range(context)
        if key <= query and query - key < (window or context)
    ]
    keys = {key for _, key in seen}
    assert cost(shape).flops == 4 * 32 * len(seen) * (2 * width + 2 * 64)
    assert cost(shape).bytes == (4 * 32 * seq_q + 4 * 8 * len(keys)) * (width + 64) * 2


def test_cost_of_a_ragged_batch_is_that_of_a_chunk_and_of_decode_rows() -> None:
    mixed = cost(shape_of(batch=4, max_context=64, mean_context=20, seq_q=10))
    decode, chunk = (
        cost(shape_of(batch=batch, max_context=context, seq_q=seq_q))
        for batch, context, seq_q in ((3, 20, 1), (1, 37, 37))
    )
    assert mixed.flops == decode.flops + chunk.flops
    assert mixed.bytes == decode.bytes + chunk.bytes
