"""The space of attention with operands: its default everywhere, what it takes, and what operands cost."""

import itertools
from dataclasses import replace
from typing import Any, Final

import pytest

from autotune.device import ARCHITECTURES, NVIDIA_H200, Device
from autotune.dtypes import QUERY_DTYPES
from autotune.errors import InvalidShapeError
from autotune.registry import implementations_of
from autotune.search_spaces.flash_attention.operation import cost, visible_pairs
from autotune.search_spaces.flash_attention.triton_masked import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config

SPACE: Final = IMPLEMENTATION.space
DEVICES: Final = {arch: replace(NVIDIA_H200, name=arch, arch=arch) for arch in (*ARCHITECTURES, "sm_999", "gfx9999")}
PLAIN: Final = AttentionShape(batch=3, heads=8, kv_heads=2, seq_q=100, seq_kv=300, head_dim=64)
BOOLEAN, ADDITIVE, SINKS = (
    replace(PLAIN, attn_mask="boolean"),
    replace(PLAIN, attn_mask="additive"),
    replace(PLAIN, sinks=True),
)
ENDS: Final = replace(PLAIN, causal=True, kv_ends=True)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_the_default_is_a_valid_config_everywhere(device: Device) -> None:
    lengths = itertools.product((1, 7, 4096), (1, 300, 100_000))
    for (seq_q, seq_kv), head_dim, dtype in itertools.product(lengths, (8, 72, 128, 256), QUERY_DTYPES):
        sizes: dict[str, Any] = {"seq_q": seq_q, "seq_kv": seq_kv, "head_dim": head_dim, "head_dim_v": head_dim}
        for shape in (BOOLEAN, ADDITIVE, SINKS, ENDS):
            each = replace(shape, **sizes, dtype=dtype)
            assert SPACE.why_invalid(SPACE.default(each, device), each, device) is None, each


@pytest.mark.parametrize("shape", [BOOLEAN, ADDITIVE, SINKS, ENDS], ids=str)
def test_no_other_implementation_takes_operands_and_each_says_why(shape: AttentionShape) -> None:
    assert IMPLEMENTATION.supports(shape, NVIDIA_H200) is None
    named = f"attn_mask='{shape.attn_mask}'" if shape.attn_mask else "sinks=True" if shape.sinks else "kv_ends=True"
    for each in implementations_of("flash_attention"):
        if each.name not in (IMPLEMENTATION.name, "triton_split_values"):  # which takes them of wider heads
            of_bytes = replace(shape, dtype="fp8") if each.name.endswith("fp8") else shape
            reason = each.supports(of_bytes, NVIDIA_H200)
            assert str(reason).endswith(f"and the shape has {named}"), each.title
            with pytest.raises(InvalidShapeError):
                each.space.default(of_bytes, NVIDIA_H200)


def test_it_takes_nothing_else() -> None:
    assert IMPLEMENTATION.supports(PLAIN, NVIDIA_H200) == (
        "flash_attention/triton_masked computes attn_mask, sinks and kv_ends, and the shape has none"
    )
    with pytest.raises(InvalidShapeError, match="computes attn_mask, sinks and kv_ends"):
        SPACE.default(PLAIN, NVIDIA_H200)


def test_only_a_boolean_mask_has_tiles_to_pass_over() -> None:
    found = {
        shape: {config["hidden_tiles"] for config in SPACE.configs(shape, NVIDIA_H200)}
        for shape in (BOOLEAN, ADDITIVE, SINKS)
    }
    assert found == {BOOLEAN: {"computed", "skipped"}, ADDITIVE: {"computed"}, SINKS: {"computed"}}
    skipped = Config({**SPACE.default(BOOLEAN, NVIDIA_H200), "hidden_tiles": "skipped"})
    reason = "hidden_tiles='skipped' needs a boolean mask, and attn_mask='additive'"
    assert SPACE.reject(skipped, ADDITIVE, NVIDIA_H200) == reason


@pytest.mark.parametrize("places", [{}, {"causal": True}, {"window": 9}], ids=str)
def test_the_bytes_of_operands_are_those_of_visible_scores(places: dict[str, Any]) -> None:
    plain, boolean, additive, sinks = (replace(each, **places) for each in (PLAIN, BOOLEAN, ADDITIVE, SINKS))
    pairs = visible_pairs(plain)
    assert cost(boolean).bytes - cost(plain).bytes == 3 * pairs  # a byte for each sequence
    assert cost(additive).bytes - cost(plain).bytes == 8 * 2 * pairs  # two bytes for each head
    assert cost(sinks).bytes - cost(plain).bytes == 8 * 4
    assert cost(replace(plain, causal=True)).flops == cost(replace(plain, causal=True, kv_ends=True)).flops
    assert {cost(each).flops for each in (plain, boolean, additive, sinks)} == {cost(plain).flops}
