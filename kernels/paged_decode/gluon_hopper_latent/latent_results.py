# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The results of a block: finished rows, or a partial result for ``combine_partials``; each group has its columns."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.gluon import product_layout
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_share import ROWS
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_weights import shift_of
from autotune.kernels.tiles import softmax
from autotune.kernels.tiles.softmax import LOG2_E

end_rows = gluon.jit(softmax.end_rows.fn)


@gluon.jit
def store_rows(outputs, sinks, state, share, GROUP: gl.constexpr, TILE: gl.constexpr, LATENTS: gl.constexpr):
    """Finish rows, whose keys were all seen, and store them; a sink, in natural units, is a logit without a value."""
    VALUES: gl.constexpr = product_layout(LATENTS.half)
    rows = share.block * ROWS + gl.arange(0, ROWS, state.row_max.type.layout)
    is_row = rows < TILE.used_rows
    row_max, row_sum = state.row_max, state.row_sum
    rescale = gl.full([ROWS], 1.0, gl.float32, state.row_max.type.layout)
    if sinks is not None:
        sink = gl.load(sinks + rows % TILE.group, mask=is_row, other=0.0).to(gl.float32) * LOG2_E
        row_max = gl.maximum(state.row_max, sink)
        shift = shift_of(row_max)
        rescale = gl.exp2(state.row_max - shift)
        row_sum = row_sum * rescale + gl.exp2(sink - shift)
    row_sum, log_sum_exp = end_rows(row_max, row_sum)
    first = gl.cast(share.sequence, gl.int64) * TILE.used_rows
    if GROUP == 0 and outputs.log_sum_exp is not None:
        gl.store(outputs.log_sum_exp + (first + rows), log_sum_exp, mask=is_row)
    factor = gl.convert_layout(rescale / row_sum, gl.SliceLayout(1, VALUES))
    rows = share.block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, VALUES))
    columns = GROUP * LATENTS.half + gl.arange(0, LATENTS.half, gl.SliceLayout(0, VALUES))
    places = ((first + rows) * (2 * LATENTS.half))[:, None] + columns[None, :]
    values = (state.accumulator * factor[:, None]).to(outputs.out.dtype.element_ty)
    gl.store(outputs.out + places, values, mask=(rows < TILE.used_rows)[:, None])


@gluon.jit
def store_partial(partials, state, share, GROUP: gl.constexpr, SPLITS: gl.constexpr, LATENTS: gl.constexpr):
    """Store a share's softmax as ``tiles.partials`` does: rows that saw no key store no accumulator."""
    VALUES: gl.constexpr = product_layout(LATENTS.half)
    index = gl.cast(share.lane * SPLITS + share.split, gl.int64)
    if GROUP == 0:
        rows = gl.arange(0, ROWS, state.row_max.type.layout)
        statistics = partials.statistics + index * (2 * ROWS)
        gl.store(statistics + rows, state.row_max)
        gl.store(statistics + (ROWS + rows), state.row_sum)
    is_seen = gl.convert_layout(state.row_sum, gl.SliceLayout(1, VALUES)) != 0.0
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, VALUES))
    columns = GROUP * LATENTS.half + gl.arange(0, LATENTS.half, gl.SliceLayout(0, VALUES))
    places = (rows * (2 * LATENTS.half))[:, None] + columns[None, :]
    accumulators = partials.accumulators + index * (ROWS * 2 * LATENTS.half)
    gl.store(accumulators + places, state.accumulator, mask=is_seen[:, None])
