"""The space of attention over split widths: the pieces of a head, the default everywhere, and what it takes."""

import itertools
from dataclasses import replace
from typing import Any, Final

import pytest

from autotune.device import ARCHITECTURES, NVIDIA_H200, Device
from autotune.dtypes import QUERY_DTYPES
from autotune.errors import InvalidShapeError
from autotune.search_spaces.bounds import padded_widths
from autotune.search_spaces.flash_attention.split_widths import split_widths
from autotune.search_spaces.flash_attention.triton_split_width import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config

SPACE: Final = IMPLEMENTATION.space
DEVICES: Final = {arch: replace(NVIDIA_H200, name=arch, arch=arch) for arch in (*ARCHITECTURES, "sm_999", "gfx9999")}
SHAPE: Final = AttentionShape(batch=3, heads=8, kv_heads=2, seq_q=100, seq_kv=300, head_dim=72)
PIECES: Final = dict(
    zip(
        (40, 48, 72, 80, 96, 136, 144, 160, 192),
        ((32, 16), (32, 16), (64, 16), (64, 16), (64, 32), (128, 16), (128, 16), (128, 32), (128, 64)),
        strict=True,
    )
)


def with_widths(head_dim: int, head_dim_v: int) -> AttentionShape:
    return replace(SHAPE, head_dim=head_dim, head_dim_v=head_dim_v)


def test_pieces_are_powers_of_two_that_hold_the_head_and_are_narrower_than_one_tile() -> None:
    for width in range(8, 257, 8):
        found, _ = split_widths(width, width)
        whole, _ = padded_widths(width, width)
        assert sum(found) >= width
        assert all(each.bit_count() == 1 and each >= 16 for each in found if each)
        assert found[1] == 0 if sum(found) == whole else sum(found) < whole, width
        assert found == PIECES.get(width, found), width


def test_values_are_cut_apart_from_keys() -> None:
    assert split_widths(192, 128) == ((128, 64), (128, 0))
    assert split_widths(64, 72) == ((64, 0), (64, 16))
    assert split_widths(80, 24) == ((64, 16), (64, 0))  # one tile has the swizzle of the keys


@pytest.mark.parametrize("widths", [(64, 64), (120, 120), (128, 24), (8, 8)], ids=str)
def test_heads_that_one_tile_holds_as_well_are_refused_with_the_reason(widths: tuple[int, int]) -> None:
    shape = with_widths(*widths)
    reason = IMPLEMENTATION.supports(shape, NVIDIA_H200)
    assert reason == (
        "flash_attention/triton_split_width computes heads that two tiles pad less than one, and "
        f"head_dim={widths[0]} and head_dim_v={widths[1]} take as many columns in one"
    )
    with pytest.raises(InvalidShapeError, match="two tiles pad less"):
        SPACE.default(shape, NVIDIA_H200)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_the_default_is_a_valid_config_everywhere(device: Device) -> None:
    lengths = itertools.product((1, 7, 4096), (1, 300, 100_000))
    widths = ((40, 40), (72, 72), (96, 96), (192, 192), (192, 128), (64, 72))
    for (seq_q, seq_kv), (head_dim, head_dim_v), dtype in itertools.product(lengths, widths, QUERY_DTYPES):
        sizes: dict[str, Any] = {"seq_q": seq_q, "seq_kv": seq_kv, "head_dim": head_dim, "head_dim_v": head_dim_v}
        shape = replace(SHAPE, **sizes, dtype=dtype)
        assert SPACE.why_invalid(SPACE.default(shape, device), shape, device) is None, shape


def test_what_is_miscompiled_on_hopper_is_not_proposed_there() -> None:
    config = Config(BLOCK_Q=64, BLOCK_K=64, num_warps=4, num_stages=1, loads="pointer")
    assert "num_stages=1 of BLOCK_Q=64 is miscompiled on sm_90" in str(SPACE.reject(config, SHAPE, NVIDIA_H200))
    assert SPACE.reject(config, SHAPE, DEVICES["sm_80"]) is None
    piped = Config({**config, "num_stages": 2})
    assert SPACE.reject(piped, SHAPE, NVIDIA_H200) is None
    precise = replace(SHAPE, dtype="float32")
    assert "BLOCK_Q=64 of float32 is miscompiled on sm_90" in str(SPACE.reject(piped, precise, NVIDIA_H200))
