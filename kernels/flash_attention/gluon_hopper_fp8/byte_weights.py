# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""From scores to weights in e4m3, and those as the factor of a product."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.gluon import pack_quads, unpack_quads
from autotune.kernels.tiles import softmax
from autotune.kernels.tiles.softmax import LOG2_E

shift_of = gluon.jit(softmax.shift_of.fn)

# Weights are up to 2 ** 8 instead of up to 1, since e4m3 ends with 448 above and with steps of 2 ** -9 below. The sums
# of rows are as much larger, and cancel it.
WEIGHT_BITS = gl.constexpr(8.0)


@gluon.jit
def weigh_scaled(scores, row_max, row_sum, numbers, FEATURES: gl.constexpr, MASKED: gl.constexpr):
    """Return the weights of scores times ``2 ** WEIGHT_BITS``, the new maxima and sums of rows, and the factor of what
    came before. Only MASKED ones may leave a row without a key."""
    # Capped scores are taken to base 2 here, others by their scale.
    factor = LOG2_E if FEATURES.softcap else numbers.score_scale
    new_max = gl.maximum(row_max, gl.max(scores, 1) * factor)
    shift = shift_of(new_max) if MASKED else new_max
    weights = gl.exp2(scores * factor - (shift - WEIGHT_BITS)[:, None])
    rescale = gl.exp2(row_max - shift)
    return weights, new_max, row_sum * rescale + gl.sum(weights, 1), rescale


@gluon.jit
def pack_weights(weights):
    """Return weights ``[rows, keys]`` in e4m3, four in one int32 ``[rows, keys / 4]``.

    The four are those that a thread holds of 16 keys, in the order in which ``values.key_at`` names them.
    """
    ROWS: gl.constexpr = weights.shape[0]
    KEYS: gl.constexpr = weights.shape[1]
    groups = weights.reshape([ROWS, KEYS // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4))
    even, odd = groups.split()
    first, third = even.split()
    second, fourth = odd.split()
    return pack_quads(first, second, third, fourth).reshape([ROWS, KEYS // 4])


@gluon.jit
def as_byte_factor(quads, VALUES: gl.constexpr):
    """Return packed weights as the left factor of a product with this layout, which takes it from registers."""
    first, second, third, fourth = unpack_quads(quads)
    weights = gl.join(gl.join(first, third), gl.join(second, fourth)).reshape([quads.shape[0], 4 * quads.shape[1]])
    return gl.convert_layout(weights, gl.DotOperandLayout(operand_index=0, parent=VALUES, k_width=4))
