"""Expected regrets of learned defaults and of rules, and the implementation that serves few queries."""

from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.search_spaces.flash_attention.triton_split_keys import PREFERRED_SPLITS, is_preferred
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


def test_a_preference_ends_where_sequences_fill_the_multiprocessors() -> None:
    """8 KV heads of 4 sequences are 32 programs of 132; of 16 they are 128."""
    preferred = {
        batch: is_preferred(shape_of(batch=batch, heads=8, kv_heads=8, seq_q=16, seq_kv=8192), NVIDIA_H200)
        for batch in (1, 4, 16, 32)
    }
    assert preferred == {1: True, 4: True, 16: False, 32: False}
