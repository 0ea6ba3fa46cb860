# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Ragged tensor maps alone: a tile is copied in and out, and nothing behind its sequence is read or written."""

import math
from typing import Any, Final

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.flash_attention.gluon_hopper.rings import begin_ring, wait_for
from autotune.kernels.flash_attention_varlen.gluon_hopper.launch import _describe_ragged
from autotune.kernels.flash_attention_varlen.gluon_hopper.ragged import SequenceRows, fill_rows, place_of
from autotune.kernels.gluon import copy_out, fence_async_shared, wait_copies_out
from tests.contract.simulating import SimulatedLaunch

ROWS: Final = 64
SEQUENCES: Final = {
    "inside": (10, 20, 0),
    "its last rows": (10, 20, 16),
    "as long as a tile": (3, 64, 0),
    "two tiles": (0, 100, 64),
    "the last": (130, 10, 0),
    "behind its end": (10, 20, 64),
    "none": (10, 0, 0),
}


@gluon.jit
def _load(source, ring, begin, count, row, head):
    fill_rows(ring, source, SequenceRows(begin, count), row, head, 0, 1, 1)


@gluon.jit
def _store(target, ring, begin, count, row, head):
    slot = wait_for(ring, 0, 1)
    fence_async_shared()
    copy_out(target, place_of(SequenceRows(begin, count), row, head, 0), ring.tiles.index(slot))
    wait_copies_out(0)


@gluon.jit
def _copy_tile(source, target, begin, count, row, head):
    ring = begin_ring(source, 1, 1, 1)
    gl.warp_specialize(
        [(_store, (target, ring, begin, count, row, head)), (_load, (source, ring, begin, count, row, head))], [1], [24]
    )


def copy_failure(name: str, width: int, device: str) -> str | None:
    """Copy a tile of one of two heads, whose neighbours in memory are NaN; the target is filled with -7."""
    begin, count, row = SEQUENCES[name]
    source = torch.full((140, 2, width), math.nan, dtype=torch.float16, device=device)
    source[begin : begin + count, 1] = torch.arange(count * width, device=device).view(count, width).half()
    target = torch.full_like(source, -7.0)
    expected = target.clone()
    copied = slice(begin + min(row, count), begin + min(row + ROWS, count))
    expected[copied, 1] = source[copied, 1]
    launched: Any = _copy_tile if device == "cuda" else SimulatedLaunch(_copy_tile)
    launched[(1,)](*(_describe_ragged(each, ROWS, width) for each in (source, target)), begin, count, row, 1)
    return None if torch.equal(target, expected) else f"rows {(target != expected).any(-1).nonzero().tolist()} differ"


@pytest.mark.parametrize("name", SEQUENCES)
def test_simulated_copies_end_with_their_sequence(name: str) -> None:
    assert copy_failure(name, 64, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("name", SEQUENCES)
def test_gpu_copies_end_with_their_sequence(name: str, width: int) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernel is for Hopper")
    assert copy_failure(name, width, "cuda") is None
