"""Estimates of ``triton`` against a count of its tiles, against recorded times, and where there are none."""

import math
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION as GLUON
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.search_spaces.flash_attention.triton_estimate import TIMES, estimate
from autotune.shape import AttentionShape
from autotune.table import Sweep, shipped_sweeps
from autotune.trial import Status
from tests import sample

CONFIG = sample.config(BLOCK_Q=64, BLOCK_K=64, num_warps=4)
SHAPE = AttentionShape(batch=3, heads=10, kv_heads=2, seq_q=300, seq_kv=410, head_dim=128, causal=True)


def narrow(batch: int, heads: int, kv_heads: int, seq: int, *, causal: bool = False) -> AttentionShape:
    return AttentionShape(batch=batch, heads=heads, kv_heads=kv_heads, seq_q=seq, head_dim=64, causal=causal)


@pytest.mark.parametrize("shape", [SHAPE, replace(SHAPE, causal=False), replace(SHAPE, seq_q=1)], ids=str)
def test_an_estimate_is_an_even_share_of_all_tiles_and_the_longest_one(shape: AttentionShape) -> None:
    times, found = TIMES[128, 128, False][64], []
    block, edge, tile = times.of_tile
    for first in range(0, shape.seq_q, 64):
        rows = range(first, min(first + 64, shape.seq_q))
        seen = [row + shape.seq_kv - shape.seq_q + 1 if shape.causal else shape.seq_kv for row in rows]
        blocks = range(0, max(seen), 64)
        edges = sum(min(seen) < block + 64 for block in blocks)
        found.append(tile + len(blocks) * block + edges * edge)
    expected = times.launch + 30 * sum(found) / NVIDIA_H200.sm_count + max(found)
    assert estimate(CONFIG, shape, NVIDIA_H200) == pytest.approx(expected)


@pytest.mark.parametrize(
    "change",
    [
        *({"window": 128}, {"dtype": "float32"}, {"head_dim": 96}, {"softcap": True, "head_dim": 64}),
        *({"BLOCK_Q": 128}, {"BLOCK_K": 256}, {"num_warps": 8}, {"device": replace(NVIDIA_H200, arch="sm_80")}),
    ],
    ids=str,
)
def test_there_is_none_of_what_nothing_was_fitted_to(change: dict[str, Any]) -> None:
    fields = {name: value for name, value in change.items() if name in AttentionShape.__dataclass_fields__}
    values = {name: value for name, value in change.items() if name in CONFIG}
    device = change.get("device", NVIDIA_H200)
    shape = replace(SHAPE, head_dim_v=fields.get("head_dim", 128), **fields)
    assert estimate(sample.config(**{**CONFIG, **values}), shape, device) is None


@pytest.mark.parametrize(
    "sweep", shipped_sweeps("flash_attention", implementation="triton"), ids=lambda each: str(each.trials()[0].shape)
)
def test_estimates_are_near_what_a_gpu_recorded(sweep: Sweep) -> None:
    """Of each number of keys the fastest config."""
    least: dict[int, tuple[float, float]] = {}
    for trial in sweep.trials():
        assert isinstance(trial.shape, AttentionShape)
        estimated = estimate(trial.config, trial.shape, trial.device)
        if trial.status is Status.OK and trial.timing is not None and estimated is not None:
            block_k = trial.config.integer("BLOCK_K")
            least[block_k] = min((trial.timing.median_us, estimated), least.get(block_k, (math.inf, 0.0)))
    if not least:
        pytest.skip("nothing is estimated of this class")
    best, _ = min(least.values())
    assert fmean(abs(math.log(estimated / time)) for time, estimated in least.values() if time <= 1.6 * best) < 0.12


@pytest.mark.parametrize(
    ("shape", "is_faster"),
    [
        (narrow(5, 14, 2, 685), True),  # 280 tiles of 192 rows on 132 multiprocessors: 1.34 times as long
        (narrow(2, 14, 2, 634, causal=True), True),
        (narrow(17, 128, 8, 365), False),  # 1.19 times
        (narrow(9, 128, 8, 148, causal=True), False),  # 1.20 times
    ],
    ids=str,
)
def test_estimates_tell_which_implementation_is_faster(shape: AttentionShape, is_faster: bool) -> None:
    """As races did (NVIDIA H200, 2026-11-28; ``benchmarks.served_regret --drawn 60``)."""
    gluon = GLUON.space.estimate(GLUON.space.default(shape, NVIDIA_H200), shape, NVIDIA_H200)
    ours = IMPLEMENTATION.space.estimate(CONFIG, shape, NVIDIA_H200)
    assert gluon is not None
    assert ours is not None
    assert (ours < gluon) == is_faster
