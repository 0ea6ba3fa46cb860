# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""From scores to weights, and weights as the factor of a product."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.gluon import exp2_on_fma, pack_pairs, unpack_pairs
from autotune.kernels.tiles import softmax
from autotune.kernels.tiles.softmax import LOG2_E

shift_of = gluon.jit(softmax.shift_of.fn)


class Visible(NamedTuple):
    """The first key in the window of each row, which nothing reads without windows, and the last that it sees."""

    first: Any
    last: Any


@gluon.jit
def visible_keys(rows, numbers, FEATURES: gl.constexpr):
    """Return the keys that rows see; none where the last comes before the first."""
    position = rows + (numbers.seq_kv - numbers.seq_q)
    first = position - numbers.window + 1
    last = gl.full(position.shape, 0, gl.int32, position.type.layout) + numbers.seq_kv - 1
    if FEATURES.causal:
        last = gl.minimum(last, position)
    elif FEATURES.window:
        last = gl.minimum(last, position + numbers.window - 1)
    return Visible(first, last)


@gluon.jit
def weigh(
    scores, row_max, row_sum, key, visible, numbers, FEATURES: gl.constexpr, FMA_SHARE: gl.constexpr,
    MASKED: gl.constexpr,
):  # fmt: skip
    """Return the weights of a block's scores, the new maxima and sums of rows, and the factor of what came before.

    Of every eight exponentials ``FMA_SHARE`` are computed by multiply-adds, but where keys may be masked.
    """
    factor = numbers.score_scale
    if FEATURES.softcap:  # score_scale is scale / softcap here; the capped scores are taken to base 2 below
        scores = numbers.softcap * tanh(scores * numbers.score_scale)
        factor = LOG2_E
    if MASKED:
        columns = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))
        scores = gl.where(columns[None, :] <= (visible.last - key)[:, None], scores, float("-inf"))
        if FEATURES.window:
            scores = gl.where(columns[None, :] >= (visible.first - key)[:, None], scores, float("-inf"))
    new_max = gl.maximum(row_max, gl.max(scores, 1) * factor)
    shift = shift_of(new_max) if MASKED else new_max
    weights = scores * factor - shift[:, None]
    weights = gl.exp2(weights) if MASKED or FMA_SHARE == 0 else exp2_on_fma(weights, FMA_SHARE)
    rescale = gl.exp2(row_max - shift)
    return weights, new_max, row_sum * rescale + gl.sum(weights, 1), rescale


@gluon.jit
def tanh(x):
    """Compute tanh by exp2, as ``tiles.softmax`` does for 16 bits."""
    decay = gl.exp2(gl.abs(x) * (-2.0 * LOG2_E))
    magnitude = (1.0 - decay) / (1.0 + decay)
    return gl.where(x < 0, -magnitude, magnitude)


@gluon.jit
def pack(weights, DTYPE: gl.constexpr):
    """Return weights ``[rows, keys]`` as pairs of 16 bits in one of 32, since loops carry 16 bits one by one."""
    low, high = weights.reshape([weights.shape[0], weights.shape[1] // 2, 2]).split()
    return pack_pairs(low, high, DTYPE)


@gluon.jit
def as_factor(pairs, DTYPE: gl.constexpr, VALUES: gl.constexpr):
    """Return packed weights as the left factor of a product with this layout, which takes it from registers."""
    low, high = unpack_pairs(pairs, DTYPE)
    weights = gl.join(low, high).reshape([pairs.shape[0], 2 * pairs.shape[1]])
    return gl.convert_layout(weights, gl.DotOperandLayout(operand_index=0, parent=VALUES, k_width=2))
