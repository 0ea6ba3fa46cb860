"""The precision of scores that tensor cores sum over wide heads, as far as a log-sum-exp shows it."""

from typing import Final

import torch

USUAL_COLUMNS: Final = 256  # what a log-sum-exp's own limit allows for
STEP: Final = 16  # columns of one matrix instruction of 16 bits
BITS: Final = 26  # of a sum, from the largest addend on
UNITS: Final = 6.0  # in the last of these, that a step may lose
HALVES: Final = (torch.float16, torch.bfloat16)


def truncation_error(q: torch.Tensor, k: torch.Tensor, scale: float) -> float:
    """Bound what cut-off sums may add to a score of ``q [..., D]`` and ``k [..., D]`` of 16 bits, D above 256; else 0.

    A matrix instruction adds 16 products to the sum so far, and cuts each off some bits behind the largest, towards 0
    (Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ Computer Science 7:e330,
    2021). With two bits more than fp32 has, as a Hopper GPU cuts them, the log-sum-exp of 576 columns in float16 is off
    by 1.43e-4 where scores are 53; an H200 was off by 1.38e-4 to 1.54e-4 (``tests/kernels/paged_decode``, 2026-11-26).
    """
    columns = q.shape[-1]
    if q.dtype not in HALVES or columns <= USUAL_COLUMNS:
        return 0.0
    largest = [tensor.double().nan_to_num().norm(dim=-1).max().item() for tensor in (q, k)]  # no score is beyond
    return float(UNITS * (columns / STEP) * 2.0**-BITS * largest[0] * largest[1] * scale)
