"""The random problems of packed sequences: lengths as the cost counts them, and the reference itself."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.kernels.flash_attention_varlen.definition import DEFINITION
from autotune.kernels.flash_attention_varlen.inputs import check_shape
from autotune.kernels.flash_attention_varlen.reference import varlen_reference
from autotune.search_spaces.flash_attention_varlen.operation import lengths_of
from autotune.varlen_shape import VarlenShape
from tests.kernels.flash_attention_varlen.numerics import truth

SHAPE = VarlenShape(
    batch=6, heads=4, kv_heads=2, max_seq_q=40, mean_seq_q=15, max_seq_kv=90, mean_seq_kv=30, head_dim=8
)


@pytest.mark.parametrize("seed", [0, 1])
def test_lengths_are_those_that_the_cost_counts(seed: int) -> None:
    inputs = DEFINITION.make_inputs(SHAPE, seed=seed, device="cpu")
    drawn = zip(inputs.cu_seqlens_q.diff().tolist(), inputs.cu_seqlens_k.diff().tolist(), strict=True)
    assert sorted(drawn) == sorted(lengths_of(SHAPE))
    assert inputs.q.shape == (int(inputs.cu_seqlens_q[-1]), 4, 8)
    assert inputs.k.shape == inputs.v.shape == (int(inputs.cu_seqlens_k[-1]), 2, 8)
    assert inputs.cu_seqlens_q.dtype == inputs.cu_seqlens_k.dtype == torch.int32


def test_seeds_order_lengths_otherwise() -> None:
    first, second = (DEFINITION.make_inputs(SHAPE, seed=seed, device="cpu") for seed in (0, 1))
    assert first.cu_seqlens_q.tolist() != second.cu_seqlens_q.tolist()


def test_tails_grow_along_each_sequence() -> None:
    shape = check_shape(replace(SHAPE, dtype="float32"), [(2, 100), (2, 0), (2, 50)])
    keys = DEFINITION.make_inputs(shape, seed=0, device="cpu", data="tails").k.mean((1, 2))
    assert keys[:20].mean() < -1.0 < 1.0 < keys[80:100].mean()
    assert keys[100:110].mean() < -1.0 < 1.0 < keys[140:].mean()
    assert keys.isfinite().all()


def test_checks_hold_the_lengths_at_which_something_ends() -> None:
    shape = VarlenShape(batch=6, heads=40, kv_heads=10, max_seq_q=5000, head_dim=8)
    long, edges = DEFINITION.check_shapes(shape)
    assert (long.kv_heads, long.group, edges.group) == (2, 4, 4)
    assert max(count for count, _ in long.lengths) * shape.group > 256
    assert any(length == 0 < count for count, length in edges.lengths)
    assert any(count == 0 < length for count, length in edges.lengths)
    assert any(0 < length < count for count, length in edges.lengths)
    assert edges.lengths[0] == edges.lengths[-1] == (0, 0)


FEATURES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": 5},
    {"causal": True, "window": 3, "softcap": True, "sinks": True},
    {"sinks": True},
]


@pytest.mark.parametrize("features", FEATURES, ids=lambda features: "-".join(features) or "plain")
def test_reference_is_dense_attention(features: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"batch": 1, "heads": 6, "kv_heads": 2, "max_seq_q": 1, "head_dim": 24, "head_dim_v": 16}
    shape = VarlenShape(**sizes, dtype="float32", **features)
    lengths = [(2, 0), (0, 3), (1, 1), (9, 4), (5, 5), (12, 33), (0, 0)]
    inputs = DEFINITION.make_inputs(check_shape(shape, lengths), seed=0, device="cpu")
    found = varlen_reference(*inputs.tensors, **inputs.features)
    for one, other in zip(found, truth(inputs, torch.float64), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
