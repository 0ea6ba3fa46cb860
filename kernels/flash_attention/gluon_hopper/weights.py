# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""From scores to weights, and weights as the factor of a product."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.gluon import pack_pairs, unpack_pairs
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
def hide_keys(scores, key, visible, FEATURES: gl.constexpr):
    """Set to -inf the scores of the keys from ``key`` on that a row does not see."""
    columns = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))
    scores = gl.where(columns[None, :] <= (visible.last - key)[:, None], scores, float("-inf"))
    if FEATURES.window:
        scores = gl.where(columns[None, :] >= (visible.first - key)[:, None], scores, float("-inf"))
    return scores


@gluon.jit
def weigh(scores, row_max, row_sum, numbers, FEATURES: gl.constexpr, MASKED: gl.constexpr):
    """Return the weights of scores, the new maxima and sums of rows, and the factor of what came before.

    Only MASKED ones may leave a row without a key.
    """
    # Capped scores are taken to base 2 here, others by their scale.
    factor = LOG2_E if FEATURES.softcap else numbers.score_scale
    new_max = gl.maximum(row_max, gl.max(scores, 1) * factor)
    shift = shift_of(new_max) if MASKED else new_max
    weights = gl.exp2(scores * factor - shift[:, None])
    rescale = gl.exp2(row_max - shift)
    return weights, new_max, row_sum * rescale + gl.sum(weights, 1), rescale


@gluon.jit
def cap(scores, numbers, FEATURES: gl.constexpr):
    """Return scores capped where the problem has a softcap, by which ``score_scale`` is divided then."""
    return numbers.softcap * tanh(scores * numbers.score_scale) if FEATURES.softcap else scores


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
