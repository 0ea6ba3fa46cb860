"""The space of paged decode: its default everywhere, what it rejects and why, and its cost against counting."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from autotune.device import ARCHITECTURES, NVIDIA_H200
from autotune.errors import InvalidShapeError
from autotune.search_spaces.paged_decode import OPERATION, cost, row_blocks
from autotune.shape import ITEM_BYTES, PagedShape
from autotune.space import Config

SPACE = OPERATION.space
DEVICES = {arch: replace(NVIDIA_H200, name=arch, arch=arch) for arch in (*ARCHITECTURES, "sm_999", "gfx9999")}


def shape_of(**fields: Any) -> PagedShape:
    sizes = {"batch": 64, "heads": 32, "kv_heads": 8, "max_context": 8192, "head_dim": 128}
    return PagedShape(**{**sizes, **fields})


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_the_default_is_a_valid_config_everywhere(device: Any) -> None:
    sizes = itertools.product((1, 300), (1, 15, 17, 100_000), (8, 72, 128, 256, 512), ITEM_BYTES)
    for batch, context, head_dim, dtype in sizes:
        for heads, kv_heads in ((1, 1), (71, 1), (128, 128)):
            shape = shape_of(batch=batch, max_context=context, head_dim=head_dim, dtype=dtype, seq_q=3)
            shape = replace(shape, heads=heads, kv_heads=kv_heads)
            assert SPACE.why_invalid(SPACE.default(shape, device), shape, device) is None, shape


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "float8_e5m2", "int8", "float32"])
def test_the_default_refuses_what_the_kernel_cannot(kv_dtype: str) -> None:
    shape = shape_of(kv_dtype=kv_dtype)
    with pytest.raises(InvalidShapeError, match=f"kv_dtype='{kv_dtype}' is not supported by paged_decode; expected"):
        SPACE.default(shape, NVIDIA_H200)
    assert list(SPACE.configs(shape, NVIDIA_H200)) == []


@pytest.mark.parametrize("arch", ["sm_86", "sm_90", "gfx942"])
def test_configs_are_valid_unique_and_hold_the_default(arch: str) -> None:
    device, shape = DEVICES[arch], shape_of()
    configs = list(SPACE.configs(shape, device))
    assert len(configs) == len(set(configs)) > 100
    assert SPACE.default(shape, device) in configs
    assert {config["schedule"] for config in configs} == {"split", "flat"}
    assert all(len(SPACE.hints(config, shape, device)) == 4 for config in configs)


VALID = Config({**SPACE.default(shape_of(), NVIDIA_H200), "schedule": "split", "BLOCK_K": 64})


@pytest.mark.parametrize(
    ("change", "shape", "arch", "reason"),
    [
        ({}, {}, "sm_90", None),
        ({}, {"max_context": 32}, "sm_90", "BLOCK_K=64 is longer than the padded context of 32"),
        ({"WORK": 32}, {"max_context": 1024}, "sm_90", "WORK=32: as many splits of at most 16 tiles"),
        ({"WORK": 32}, {"mean_context": 400}, "sm_90", "WORK=32: partial results of 262144 bytes for keys and values"),
        ({"WORK": 8, "schedule": "flat"}, {"batch": 1, "max_context": 1024}, "sm_90", "132 programs of a KV head for"),
        ({"WORK": 8, "schedule": "flat"}, {"batch": 9, "max_context": 1024}, "sm_90", None),
        ({"BLOCK_K": 256, "num_warps": 1}, {}, "sm_90", "loads of 16 bytes a tile, more than 64"),
        ({"BLOCK_K": 32, "num_warps": 1}, {"seq_q": 8, "head_dim": 512}, "sm_90", "544 fp32 values a thread stay live"),
        ({"num_stages": 5}, {}, "sm_86", "K and V tiles take 131072 bytes of shared memory, sm_86 has 101376"),
        ({}, {"kv_dtype": "int8"}, "sm_90", "kv_dtype='int8' is not supported"),
    ],
)  # fmt: skip
def test_reject_names_the_value_and_the_limit(
    change: dict[str, Any], shape: dict[str, Any], arch: str, reason: str | None
) -> None:
    found = SPACE.why_invalid(Config({**VALID, **change}), shape_of(**shape), DEVICES[arch])
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(
    ("rows", "blocks", "block_rows"), [(1, 1, 16), (16, 1, 16), (17, 1, 32), (64, 1, 64), (65, 2, 64), (568, 9, 64)]
)
def test_rows_are_tiled(rows: int, blocks: int, block_rows: int) -> None:
    assert row_blocks(rows) == (blocks, block_rows)
    assert blocks * block_rows >= rows


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("seq_q", [1, 3])
@pytest.mark.parametrize("context", [1, 2, 5, 50])
def test_cost_is_what_counting_says(context: int, seq_q: int, window: int | None) -> None:
    shape = shape_of(max_context=64, mean_context=context, seq_q=seq_q, window=window, head_dim_v=64)
    reach = window or context
    seen = [
        (query, key)
        for query in range(context - seq_q, context)
        for key in range(context)
        if key <= query and query - key < reach
    ]
    keys = {key for _, key in seen}
    assert cost(shape).flops == 64 * 32 * len(seen) * (2 * 128 + 2 * 64)
    queries = 64 * 32 * seq_q * (128 + 64) * 2
    assert cost(shape).bytes == queries + 64 * 8 * len(keys) * (128 + 64) * 2


def test_the_hash_knows_every_source_that_the_launch_reaches() -> None:
    names = {path.name for path in OPERATION.sources}
    assert names >= {"forward.py", "combine.py", "softmax.py", "tiles.py", "launch.py", "paged_decode.py"}
    assert all(path.is_file() for path in OPERATION.sources)
    assert len(OPERATION.source_hash) == 64
