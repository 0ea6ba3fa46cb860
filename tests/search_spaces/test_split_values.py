"""The space of attention over split values: what it computes, the default everywhere, and what it takes."""

import itertools
from dataclasses import replace
from typing import Any, Final

import pytest

from autotune.device import ARCHITECTURES, NVIDIA_H200, Device
from autotune.dispatch import get_kernel
from autotune.dtypes import QUERY_DTYPES
from autotune.errors import InvalidShapeError
from autotune.registry import implementations_of
from autotune.search_spaces.flash_attention.triton_split_keys import IMPLEMENTATION as SPLIT_KEYS
from autotune.search_spaces.flash_attention.triton_split_values import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config

SPACE: Final = IMPLEMENTATION.space
DEVICES: Final = {arch: replace(NVIDIA_H200, name=arch, arch=arch) for arch in (*ARCHITECTURES, "sm_999", "gfx9999")}
SHAPE: Final = AttentionShape(batch=3, heads=8, kv_heads=2, seq_q=100, seq_kv=300, head_dim=512, causal=True)
CONFIG: Final = Config(BLOCK_Q=64, BLOCK_K=32, BLOCK_V=256, num_warps=8, num_stages=3, loads="descriptor")
OPERANDS: Final[tuple[dict[str, Any], ...]] = ({}, {"attn_mask": "boolean"}, {"sinks": True}, {"kv_ends": True})


def with_widths(head_dim: int, head_dim_v: int, **fields: Any) -> AttentionShape:
    return replace(SHAPE, head_dim=head_dim, head_dim_v=head_dim_v, **fields)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_the_default_is_a_valid_config_everywhere(device: Device) -> None:
    lengths = itertools.product((1, 7, 32, 4096), (1, 300, 100_000))
    widths = ((512, 512), (264, 264), (320, 384), (512, 8), (64, 512))
    for (seq_q, seq_kv), width, dtype, fields in itertools.product(lengths, widths, QUERY_DTYPES, OPERANDS):
        shape = with_widths(*width, seq_q=seq_q, seq_kv=seq_kv, dtype=dtype, **fields)
        assert SPACE.why_invalid(SPACE.default(shape, device), shape, device) is None, shape


@pytest.mark.parametrize("widths", [(256, 256), (8, 256), (256, 72)], ids=str)
def test_heads_that_others_compute_are_refused_with_the_reason(widths: tuple[int, int]) -> None:
    shape = with_widths(*widths)
    assert IMPLEMENTATION.supports(shape, NVIDIA_H200) == (
        "flash_attention/triton_split_values computes heads wider than 256, and the shape has "
        f"head_dim={widths[0]} and head_dim_v={widths[1]}"
    )
    with pytest.raises(InvalidShapeError, match="wider than 256"):
        SPACE.default(shape, NVIDIA_H200)


@pytest.mark.parametrize("fields", OPERANDS, ids=str)
@pytest.mark.parametrize("widths", [(272, 16), (16, 272), (512, 512)], ids=str)
def test_no_other_implementation_of_ours_takes_wider_heads_and_each_says_why(
    widths: tuple[int, int], fields: dict[str, Any]
) -> None:
    shape = with_widths(*widths, **fields)
    assert IMPLEMENTATION.supports(shape, NVIDIA_H200) is None
    name = "head_dim_v" if widths[0] == 16 else "head_dim"
    for each in implementations_of("flash_attention"):
        if each.is_ours and each is not IMPLEMENTATION:
            of_type = replace(shape, dtype="fp8") if each.name.endswith("fp8") else shape
            reason = str(each.supports(of_type, NVIDIA_H200))
            said = f"{each.title} computes heads up to 256, and the shape has {name}={getattr(shape, name)}"
            if each is SPLIT_KEYS:
                assert "computes at most 64 queries" in reason or "takes no" in reason
            else:
                assert reason == said or (fields and reason.startswith(f"{each.title} takes no")), each.title


def test_few_queries_of_wide_heads_are_computed_over_split_keys() -> None:
    decode = replace(SHAPE, seq_q=1, seq_kv=8192)
    assert [get_kernel(each, device="sm_90").candidate.implementation for each in (decode, SHAPE)] == [
        "triton_split_keys",
        "triton_split_values",
    ]
    for device in DEVICES.values():
        for each in (decode, replace(decode, seq_q=8), replace(decode, seq_q=64)):
            assert SPLIT_KEYS.space.why_invalid(SPLIT_KEYS.space.default(each, device), each, device) is None


def test_scores_are_not_computed_more_than_four_times() -> None:
    quarter = Config({**CONFIG, "BLOCK_V": 128})
    assert SPACE.reject(quarter, SHAPE, NVIDIA_H200) is None
    eighth = Config({**CONFIG, "BLOCK_V": 64})
    assert SPACE.reject(eighth, SHAPE, NVIDIA_H200) == "BLOCK_V=64 computes the scores of head_dim_v=512 8 times"
    narrow = with_widths(512, 64)
    assert SPACE.reject(eighth, narrow, NVIDIA_H200) is None
    assert "wider than the padded values of 64" in str(SPACE.reject(quarter, narrow, NVIDIA_H200))


def test_queries_lie_in_shared_memory_beside_all_stages_where_warp_groups_multiply() -> None:
    fits = Config({**CONFIG, "BLOCK_Q": 128, "num_stages": 2})
    assert SPACE.reject(fits, SHAPE, NVIDIA_H200) is None
    reason = str(SPACE.reject(Config({**fits, "num_stages": 3}), SHAPE, NVIDIA_H200))
    assert reason == f"tiles take {(128 * 512 + 3 * 32 * 768) * 2} bytes of shared memory, sm_90 has 232448"


def test_two_warp_groups_may_share_their_rows_on_hopper_alone() -> None:
    assert SPACE.reject(CONFIG, SHAPE, NVIDIA_H200) is None
    assert "8 warps would share 64 rows" in str(SPACE.reject(CONFIG, SHAPE, DEVICES["sm_100"]))


def test_hints_count_the_products_that_are_computed_again() -> None:
    whole, half = (
        SPACE.hints(Config({**CONFIG, "BLOCK_V": columns, "num_stages": 2}), SHAPE, NVIDIA_H200)
        for columns in (512, 256)
    )
    assert 2 ** (half[-1] - whole[-1]) == pytest.approx(1.5)
