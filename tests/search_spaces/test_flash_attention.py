"""The space of flash attention: its default everywhere, its configs, and its cost against counting."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.device import ARCHITECTURES, NVIDIA_H200, Device
from autotune.dtypes import QUERY_DTYPES
from autotune.search_spaces.bounds import padded_widths
from autotune.search_spaces.flash_attention.operation import cost, visible_pairs
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION, usual_config
from autotune.shape import AttentionShape
from autotune.space import Config

SPACE = IMPLEMENTATION.space
HEAD_DIMS = (8, 24, 64, 72, 96, 128, 160, 192, 256)
LENGTHS = (1, 15, 16, 17, 100, 1024)
DEVICES = {arch: replace(NVIDIA_H200, name=arch, arch=arch) for arch in (*ARCHITECTURES, "sm_999", "gfx9999")}


def shape_of(head_dim: int = 128, seq: int = 4096, dtype: str = "bfloat16", **fields: object) -> AttentionShape:
    return AttentionShape(batch=1, heads=8, seq_q=seq, head_dim=head_dim, dtype=dtype, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_the_default_is_a_valid_config_everywhere(device: Device) -> None:
    for head_dim, seq, dtype in itertools.product(HEAD_DIMS, LENGTHS, QUERY_DTYPES):
        for shape in (shape_of(head_dim, seq, dtype), shape_of(head_dim, 1, dtype, seq_kv=seq, head_dim_v=64)):
            assert SPACE.why_invalid(SPACE.default(shape, device), shape, device) is None, shape


@pytest.mark.parametrize("arch", ["sm_86", "sm_90", "gfx942"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_configs_are_valid_unique_and_hold_the_default(arch: str, dtype: str) -> None:
    device, shape = DEVICES[arch], shape_of(dtype=dtype)
    configs = list(SPACE.configs(shape, device))
    assert len(configs) == len(set(configs)) > 50
    assert all(SPACE.why_invalid(config, shape, device) is None for config in configs)
    assert SPACE.default(shape, device) in configs
    assert len(configs) < SPACE.size(device)
    assert SPACE.size(device) == 5 * 5 * 5 * 5 * 2 * (8 if arch == "gfx942" else 1)


@pytest.mark.parametrize(
    ("head_dim", "arch", "tutorial", "flash_attention_2"),
    [
        (64, "sm_90", (128, 64, 8, 5, "pointer"), (128, 128, 4, 3, "descriptor")),
        (96, "sm_90", (128, 32, 8, 5, "pointer"), (128, 64, 4, 3, "descriptor")),
        (128, "sm_80", (128, 32, 4, 3, "pointer"), (128, 64, 4, 3, "pointer")),
        (192, "sm_90", (128, 32, 8, 5, "pointer"), (128, 64, 8, 3, "descriptor")),
        (256, "sm_80", (128, 32, 4, 3, "pointer"), (128, 64, 8, 3, "pointer")),
        (256, "sm_90", (128, 32, 8, 5, "pointer"), (64, 64, 4, 3, "descriptor")),
        (256, "sm_86", (128, 32, 4, 3, "pointer"), (64, 64, 4, 3, "pointer")),
        (256, "sm_100", (128, 32, 4, 3, "pointer"), (64, 64, 4, 3, "descriptor")),
    ],
)
def test_what_people_write_by_hand(head_dim: int, arch: str, tutorial: object, flash_attention_2: object) -> None:
    found = SPACE.heuristics(shape_of(head_dim), DEVICES[arch])
    names = ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages", "loads")
    assert [tuple(config[name] for name in names) for config in found] == [tutorial, flash_attention_2]
    assert all(SPACE.why_outside(config, DEVICES[arch]) is None for config in found)
    assert SPACE.heuristics(shape_of(head_dim, dtype="float32"), DEVICES[arch]) == ()


@pytest.mark.parametrize(
    ("arch", "head_dim", "fields", "tile"),
    [
        *(("sm_86", head_dim, {"causal": True}, (64, 64, 4)) for head_dim in (96, 128)),
        ("sm_89", 128, {"causal": True}, (64, 64, 4)),
        ("sm_89", 128, {"causal": True, "window": 512}, (128, 32, 4)),  # it calls a window no causal mask
        ("sm_89", 128, {}, (128, 32, 4)),
        ("sm_89", 96, {}, (128, 64, 4)),
        ("sm_89", 64, {"causal": True}, (128, 128, 4)),
        ("sm_80", 128, {"causal": True}, (128, 64, 4)),
        ("sm_120", 128, {"causal": True}, (128, 64, 4)),
    ],
)
def test_consumer_gpus_have_tiles_of_their_own(
    arch: str, head_dim: int, fields: dict[str, Any], tile: tuple[int, ...]
) -> None:
    """As ``is_sm8x`` of FlashAttention-2's launch template does."""
    config = SPACE.heuristics(shape_of(head_dim, **fields), replace(NVIDIA_H200, name=arch, arch=arch))[1]
    assert tuple(config[name] for name in ("BLOCK_Q", "BLOCK_K", "num_warps")) == tile


def test_tiles_that_large_shared_memory_has_room_for() -> None:
    """Halving the memory can only remove configs."""
    large = set(SPACE.configs(shape_of(), DEVICES["sm_90"]))
    small = set(SPACE.configs(shape_of(), DEVICES["sm_86"]))
    assert small < large


VALID = usual_config(shape_of(), NVIDIA_H200)


@pytest.mark.parametrize(
    ("change", "shape", "arch", "reason"),
    [
        ({"BLOCK_Q": 256, "num_warps": 1}, shape_of(), "sm_90", "registers hold"),
        ({"BLOCK_Q": 16, "num_warps": 8}, shape_of(), "sm_90", "8 warps would share 16 rows"),
        ({"BLOCK_K": 64, "num_stages": 5}, shape_of(), "sm_86", "K and V tiles take 131072 bytes of shared memory"),
        ({}, shape_of(seq=65), "sm_90", None),
        ({}, shape_of(seq=64), "sm_90", "BLOCK_Q=128 is longer than the padded length of 64"),
        ({"BLOCK_Q": 16, "num_warps": 1}, shape_of(seq=17), "sm_90", "BLOCK_K=64 is longer than the padded length"),
        ({"BLOCK_Q": 16, "num_warps": 1, "BLOCK_K": 16}, shape_of(seq=1), "sm_90", None),
    ],
)  # fmt: skip
def test_reject_names_the_value_and_the_limit(
    change: dict[str, int], shape: AttentionShape, arch: str, reason: str | None
) -> None:
    found = SPACE.why_invalid(Config({**VALID, **change}), shape, DEVICES[arch])
    assert found is None if reason is None else reason in (found or "")


def test_amd_has_its_own_parameters_and_no_deep_pipeline() -> None:
    configs = list(SPACE.configs(shape_of(), DEVICES["gfx942"]))
    assert {config["num_stages"] for config in configs} == {1, 2}
    assert {config["waves_per_eu"] for config in configs} == {0, 2}
    assert all(config["kpack"] is None for config in SPACE.configs(shape_of(), NVIDIA_H200))


@pytest.mark.parametrize(
    ("head_dims", "widths"),
    [
        ((8, 8), (16, 16)),
        ((24, 24), (32, 32)),
        ((72, 72), (128, 128)),
        ((192, 128), (256, 128)),
        ((80, 24), (128, 64)),  # values share the swizzle of the keys
        ((24, 8), (32, 32)),
        ((8, 80), (64, 128)),
    ],
)
def test_padded_widths(head_dims: tuple[int, int], widths: tuple[int, int]) -> None:
    assert padded_widths(*head_dims) == widths


def count_pairs(shape: AttentionShape) -> int:
    """One by one: query and key are compared by their distance from the last query and the last key."""
    count = 0
    for query, key in itertools.product(range(shape.seq_q), range(shape.seq_kv)):
        ahead = (key - shape.seq_kv) - (query - shape.seq_q)
        is_future = shape.causal and ahead > 0
        is_outside = shape.window is not None and abs(ahead) >= shape.window
        count += not is_future and not is_outside
    return count


@given(
    seq_q=st.integers(1, 24),
    seq_kv=st.integers(1, 24),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 50),
)
@settings(max_examples=300, deadline=None)
def test_visible_pairs_and_cost_by_counting(seq_q: int, seq_kv: int, causal: bool, window: int | None) -> None:
    shape = AttentionShape(
        batch=3,
        heads=4,
        kv_heads=2,
        seq_q=seq_q,
        seq_kv=seq_kv,
        head_dim=16,
        head_dim_v=8,
        causal=causal,
        window=window,
    )
    pairs = count_pairs(shape)
    assert visible_pairs(shape) == pairs
    found = cost(shape)
    assert found.flops == 3 * 4 * pairs * (2 * 16 + 2 * 8)
    seen = seq_kv
    if window is not None:  # a key counts if any query has it in its window
        first_query_age, keys = seq_q - 1, range(seq_kv)
        seen = sum(seq_kv - 1 - key < first_query_age + window for key in keys)
    elements = 3 * (seq_q * 4 * (16 + 8) + seen * 2 * (16 + 8))
    assert found.bytes == 2 * elements


def test_cost_is_the_fields_convention() -> None:
    """FlashAttention's benchmarks: 4 S^2 D H FLOPs, half of it under a causal mask (here to within the diagonal)."""
    assert cost(shape_of(seq=4096)).flops == 4 * 4096**2 * 128 * 8
    assert cost(shape_of(seq=4096, causal=True)).flops == 4 * (4096 * 4097 // 2) * 128 * 8
    assert cost(shape_of(seq=4096, dtype="float32")).bytes == 2 * cost(shape_of(seq=4096)).bytes
