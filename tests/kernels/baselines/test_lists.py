"""Rules that all baselines of an operation keep."""

from dataclasses import replace

import pytest

from autotune.kernels.baselines.lists import OF_PAGED_DECODE, OF_PAGED_PREFILL
from autotune.operation import Baseline
from autotune.shape import PagedShape

# Of pages and widths that all of them take.
SHAPE = PagedShape(batch=2, heads=8, kv_heads=2, max_context=1024, head_dim=128, page_size=256)
LATENT = PagedShape(batch=2, heads=16, max_context=1024, head_dim=576)


@pytest.mark.parametrize("baseline", dict.fromkeys((*OF_PAGED_DECODE, *OF_PAGED_PREFILL)), ids=lambda each: each.name)
def test_none_takes_a_paged_problem_without_a_mask_for_a_causal_one(baseline: Baseline) -> None:
    shape = LATENT if baseline.name == "flashinfer mla" else SHAPE
    assert baseline.unsupported(shape) is None
    assert "causal=False" in (baseline.unsupported(replace(shape, causal=False)) or "")
