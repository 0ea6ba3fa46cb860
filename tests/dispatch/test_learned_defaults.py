"""What is expected of a learned default and of a rule, and which implementation few queries are served."""

from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.search_spaces.flash_attention.triton_split_keys import PREFERRED_SPLITS, default, is_preferred
from autotune.shape import AttentionShape

H200 = NVIDIA_H200.name


def shape_of(**fields: Any) -> AttentionShape:
    sizes: dict[str, Any] = {"batch": 4, "heads": 28, "kv_heads": 4, "seq_q": 3000, "head_dim": 128, "causal": True}
    return AttentionShape(**{**sizes, "dtype": "bfloat16", **fields})


def test_a_learned_default_is_named_and_has_an_expected_regret() -> None:
    provenance = get_kernel(shape_of(), device=H200).provenance
    assert "the space's default, learned from recordings" in provenance.reason
    assert provenance.expected_regret is not None
    assert provenance.evidence > 0


@pytest.mark.parametrize(
    "fields",
    [
        *({"seq_q": 100, "batch": 5, "heads": 16, "kv_heads": 16}, {"seq_q": 120, "causal": False}),
        *({"seq_q": 4096, "seq_kv": 77, "causal": False}, {"seq_q": 4096, "seq_kv": 1024}),
        {"seq_q": 2500, "window": 512, "causal": False},
    ],
    ids=str,
)
def test_what_networks_lost_says_nothing_of_a_rule(fields: dict[str, Any]) -> None:
    provenance = get_kernel(shape_of(**fields), device=H200).provenance
    assert "learned" not in provenance.reason
    assert provenance.expected_regret is None


@pytest.mark.parametrize("queries", [1, 16, 64])
def test_few_queries_on_many_keys_are_served_split_keys(queries: int) -> None:
    shape = shape_of(batch=1, heads=32, kv_heads=8, seq_q=queries, seq_kv=16384)
    kernel = get_kernel(shape, device=H200)
    assert kernel.candidate.implementation == "triton_split_keys"
    assert kernel.candidate.config.integer("NUM_SPLITS") >= PREFERRED_SPLITS
    assert kernel.provenance.expected_regret is None


@pytest.mark.parametrize(
    "fields", [{"seq_q": 64, "batch": 64}, {"seq_q": 64, "seq_kv": 77}, {"seq_q": 65, "seq_kv": 16384}], ids=str
)
def test_where_tiles_suffice_or_keys_are_few_they_are_not(fields: dict[str, Any]) -> None:
    shape = shape_of(**fields)
    assert not is_preferred(shape, NVIDIA_H200)
    assert get_kernel(shape, device=H200).candidate.implementation != "triton_split_keys"


def test_a_preference_follows_the_splits_of_the_default() -> None:
    for batch in (1, 2, 4, 8, 16, 32):
        shape = shape_of(batch=batch, heads=8, kv_heads=8, seq_q=16, seq_kv=8192)
        assert is_preferred(shape, NVIDIA_H200) == (default(shape, NVIDIA_H200).integer("NUM_SPLITS") >= 4)
