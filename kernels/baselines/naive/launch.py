"""The launches of naive attention's three kernels: grids, strides, block sizes."""

from typing import Any, Final, NamedTuple

import torch
import triton

from autotune.kernels.baselines.naive.forward import attention_scores, softmax_rows, weighted_sum

# Not tuned, since this is the "before": the 64 x 64 tiles of a textbook matrix product, 32 deep. All three compile
# in seconds in fp32 too, and with the widest heads they fit the 64 KB of shared memory of an AMD CDNA 3, the least of
# what is supported.
BLOCK_Q: Final = 64
BLOCK_K: Final = 64
DEPTH: Final = 32
MIN_WIDTH: Final = 16  # of a dot's tile
# Scores that one step of the softmax holds: 32 registers of each of a program's 128 threads. As many rows as fit are
# taken together; longer ones take several steps.
SOFTMAX_TILE: Final = 4096


class NaiveLaunch(NamedTuple):
    """One kernel, its grid, its arguments and its constants."""

    kernel: Any
    grid: tuple[int]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]

    def run(self) -> None:
        self.kernel[self.grid](*self.arguments, **self.constants)


def plan_launches(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scores: torch.Tensor,
    out: torch.Tensor,
    *,
    causal: bool,
    scale: float,
) -> tuple[NaiveLaunch, NaiveLaunch, NaiveLaunch]:
    """Return the three launches that compute attention over ``q [B, S_q, H, D]``, ``k [B, S_kv, H_kv, D]`` and
    ``v [B, S_kv, H_kv, D_v]``, to be run in order; no length is 0.

    ``scores`` is contiguous ``[B, H, S_q, S_kv]`` and holds the weights afterwards, ``out`` is ``[B, S_q, H, D_v]``;
    all are of one dtype, and the others have any strides with a unit last one.
    """
    batch, heads, seq_q, seq_kv = scores.shape
    group, count = heads // k.shape[2], batch * heads * seq_q
    query_tiles = triton.cdiv(seq_q, BLOCK_Q) * batch * heads
    lengths = (heads, group, seq_q, seq_kv)
    block = min(SOFTMAX_TILE, triton.next_power_of_2(seq_kv))
    rows = SOFTMAX_TILE // block
    width = max(MIN_WIDTH, triton.next_power_of_2(v.shape[3]))
    return (
        NaiveLaunch(
            attention_scores,
            (triton.cdiv(seq_kv, BLOCK_K) * query_tiles,),
            (q, k, scores, *q.stride()[:3], *k.stride()[:3], *lengths, scale),
            {"HEAD_DIM": q.shape[3], "BLOCK_Q": BLOCK_Q, "BLOCK_K": BLOCK_K, "BLOCK_D": DEPTH, "CAUSAL": causal},
        ),
        NaiveLaunch(softmax_rows, (triton.cdiv(count, rows),), (scores, count, seq_kv), {"ROWS": rows, "BLOCK": block}),
        NaiveLaunch(
            weighted_sum,
            (query_tiles,),
            (scores, v, out, *v.stride()[:3], *out.stride()[:3], *lengths),
            {"HEAD_DIM_V": v.shape[3], "BLOCK_Q": BLOCK_Q, "BLOCK_K": DEPTH, "BLOCK_DV": width},
        ),
    )
