# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The softcap of scores: ``softcap * tanh(score / softcap)``, as in Gemma 2 (arXiv 2408.00118)."""

import triton
import triton.language as tl

from autotune.kernels.tiles.softmax import LOG2_E


@triton.jit
def cap_scores(scores, softcap, PRECISE: tl.constexpr):
    """Return ``softcap * tanh(scores)`` for scores that were divided by the softcap."""
    return softcap * tanh(scores, PRECISE)


@triton.jit
def tanh(x, PRECISE: tl.constexpr):
    """Compute tanh by exp2, which Triton has on every backend; PRECISE adds a series near 0, where 1 - exp cancels."""
    decay = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))  # exp(-2 |x|)
    magnitude = (1.0 - decay) / (1.0 + decay)
    result = tl.where(x < 0, -magnitude, magnitude)
    if PRECISE:
        square = x * x
        series = x * (
            1.0 + square * (-0.33333333 + square * (0.13333333 + square * (-0.053968254 + square * 0.021869488)))
        )
        result = tl.where(square < 0.09, series, result)
    return result
