"""The space of paged prefill: its default everywhere, what it rejects and why, and its cost against counting."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from autotune.device import ARCHITECTURES, NVIDIA_H200
from autotune.dtypes import QUERY_DTYPES
from autotune.errors import InvalidShapeError
from autotune.kernels.paged_prefill.definition import DEFINITION
from autotune.search_spaces.paged_prefill.operation import cost, lengths_of
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
    message = "kv_dtype='int8' is not supported by paged_prefill with dtype='float32'; expected float32"
    lacking = "kv_dtype='float8_e4m3fn' needs conversions that sm_80 lacks"
    for fields, arch, reason in (
        ({"kv_dtype": "int8", "dtype": "float32"}, "sm_90", message),
        ({"kv_dtype": "fp8"}, "sm_80", lacking),
    ):
        shape, device = shape_of(**fields), DEVICES[arch]
        with pytest.raises(InvalidShapeError, match=reason):
            SPACE.default(shape, device)
        assert list(SPACE.configs(shape, device)) == []
        assert reason in (IMPLEMENTATION.supports(shape, device) or "")


@pytest.mark.parametrize("kv_dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_caches_of_one_byte_have_a_default_wherever_they_are_converted(kv_dtype: str) -> None:
    architectures = ("sm_80", "sm_86", "sm_90", "sm_120", "gfx942")
    for arch, head_dim, batch in itertools.product(architectures, (64, 128, 256, 512), (1, 9)):
        shape, device = shape_of(kv_dtype=kv_dtype, head_dim=head_dim, batch=batch), DEVICES[arch]
        if IMPLEMENTATION.supports(shape, device) is None:
            assert SPACE.why_invalid(SPACE.default(shape, device), shape, device) is None, shape
            assert all(math.isfinite(hint) for hint in SPACE.hints(SPACE.default(shape, device), shape, device))


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
        ({"kv_dtype": "int8"}, "sm_90", (128, 64, 8, 3)),  # with more keys registers spill
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


@pytest.mark.parametrize(
    ("fields", "tile"),
    [
        ({"head_dim": 64, "window": 128}, (64, 16, 4, 3)),
        ({"head_dim": 64, "window": 129}, (128, 64, 4, 3)),
        ({"head_dim": 64, "window": 128, "kv_heads": 32}, (128, 64, 4, 3)),  # as many keys as rows
        ({}, (64, 64, 4, 3)),
        ({"batch": 1, "kv_heads": 2, "heads": 16, "max_context": 2048}, (64, 128, 4, 3)),  # a tile a multiprocessor
        ({"max_context": 32768}, (128, 128, 8, 3)),
        ({"max_context": 32768, "window": 4096}, (64, 64, 4, 3)),
        ({"head_dim": 96}, (128, 64, 8, 3)),
        ({"batch": 1, "kv_heads": 2, "heads": 16, "max_context": 32768}, (64, 128, 4, 3)),
        ({"head_dim": 64, "max_context": 131072, "mean_context": 128}, (128, 64, 4, 3)),  # a few long ones do the work
        ({"kv_dtype": "fp8", "head_dim": 96}, (128, 128, 8, 3)),
        ({"kv_dtype": "float8_e5m2", "head_dim": 96}, (128, 64, 8, 3)),
        ({"kv_dtype": "fp8", "batch": 1, "kv_heads": 2, "heads": 16}, (64, 64, 4, 3)),
    ],
    ids=str,
)
def test_the_default_on_hopper_is_what_recordings_chose(fields: dict[str, Any], tile: tuple[int, ...]) -> None:
    config = SPACE.default(shape_of(**fields), NVIDIA_H200)
    assert tuple(config[name] for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")) == tile


VALID = Config({**SPACE.default(shape_of(), NVIDIA_H200), "BLOCK_Q": 128, "BLOCK_K": 64, "num_warps": 8})


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
        ({"num_stages": 5}, {"kv_dtype": "int8"}, "sm_86", None),  # of half the bytes
        ({}, {"kv_dtype": "fp8"}, "sm_86", "kv_dtype='float8_e4m3fn' needs conversions that sm_86 lacks"),
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
@pytest.mark.parametrize(("width", "kv_dtype"), [(128, "bfloat16"), (512, "int8")])
def test_cost_is_what_counting_says(context: int, seq_q: int, window: int | None, width: int, kv_dtype: str) -> None:
    sizes: dict[str, Any] = {"max_context": context, "seq_q": seq_q, "head_dim": width, "head_dim_v": 64}
    shape = shape_of(**sizes, window=window, kv_dtype=kv_dtype)
    seen = [
        (query, key)
        for query in range(context - seq_q, context)
        for key in range(context)
        if key <= query and query - key < (window or context)
    ]
    keys = {key for _, key in seen}
    assert cost(shape).flops == 4 * 32 * len(seen) * (2 * width + 2 * 64)
    item_bytes = 1 if kv_dtype == "int8" else 2
    assert cost(shape).bytes == (4 * 32 * seq_q * 2 + 4 * 8 * len(keys) * item_bytes) * (width + 64)


def test_without_a_mask_every_query_costs_all_keys() -> None:
    found = cost(shape_of(max_context=50, seq_q=7, causal=False))
    assert found.flops == 4 * 32 * 7 * 50 * (2 * 128 + 2 * 128)
    assert found.bytes == (4 * 32 * 7 + 4 * 8 * 50) * (128 + 128) * 2


def test_inputs_have_the_lengths_of_the_cost_in_another_order_for_each_seed_and_the_chunk_last() -> None:
    shape = shape_of(batch=16, max_context=64, mean_context=20, seq_q=5)
    first, second = (DEFINITION.make_inputs(shape, seed=seed, device="cpu").seq_lens.tolist() for seed in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second) == sorted(keys for _, keys in lengths_of(shape))
    assert first[-1] == second[-1] == 64 == lengths_of(shape)[-1][1]  # 65 queries are more than the mean, and the most


def test_cost_of_a_ragged_batch_is_that_of_a_chunk_and_of_decode_rows() -> None:
    """Over the sequences of random inputs, whose chunk has the mean of keys where it does not need more."""
    for seq_q, window, chunk_keys in ((10, None, 37), (2, None, 20), (2, 16, 20)):
        mixed = shape_of(batch=4, max_context=64, mean_context=20, seq_q=seq_q, window=window)
        inputs = DEFINITION.make_inputs(mixed, seed=0, device="cpu")
        counts, lengths = inputs.cu_seqlens_q.diff().tolist(), inputs.seq_lens.tolist()
        assert lengths[-1] == chunk_keys
        parts = [
            cost(shape_of(batch=1, max_context=keys, seq_q=queries, window=window))
            for queries, keys in zip(counts, lengths, strict=True)
        ]
        assert cost(mixed).flops == sum(part.flops for part in parts)
        assert cost(mixed).bytes == sum(part.bytes for part in parts)
