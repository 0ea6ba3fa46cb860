# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The schedule of a config, and the scales of a head."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.flash_attention.gluon_hopper.schedule import Numbers


class ByteSchedule(NamedTuple):
    """The parameters of a config, as in ``gluon_hopper.schedule.WarpSchedule``; results have memory of their own.

    With ``block_sums`` the values of a block are summed apart, and added to those of the blocks before in fp32: the
    matrix unit's own sums of e4m3 keep fewer bits.
    """

    consumers: int
    block_k: int
    slots: int
    query_slots: int
    registers: int
    ping_pong: bool
    values_early: bool
    block_sums: bool
    value_parts: int  # of the columns of values, multiplied one after another; more than one with sums of blocks alone


class Scales(NamedTuple):
    """Factors of the integers that bytes stand for: fp32 addresses or None, and strides of batch and of head each."""

    q: Any
    k: Any
    v: Any
    q_batch: Any
    q_head: Any
    k_batch: Any
    k_head: Any
    v_batch: Any
    v_head: Any


@gluon.jit
def scaled_numbers(numbers, scales, tile):
    """Return the numbers of a problem with the score's scale of the tile's head."""
    scale = numbers.score_scale
    if scales.q is not None:
        scale = scale * gl.load(scales.q + tile.batch * scales.q_batch + tile.head * scales.q_head)
    if scales.k is not None:
        scale = scale * gl.load(scales.k + tile.batch * scales.k_batch + tile.head // numbers.group * scales.k_head)
    return Numbers(
        numbers.heads, numbers.group, numbers.seq_q, numbers.seq_kv, numbers.window, scale, numbers.softcap,
        numbers.tiles, numbers.section, numbers.flips,
    )  # fmt: skip


@gluon.jit
def value_scale_of(value_scale, numbers, scales, tile):
    """Return the scale of the values of the tile's head, ``value_scale`` of all heads included."""
    if scales.v is not None:
        head = tile.head // numbers.group
        value_scale = value_scale * gl.load(scales.v + tile.batch * scales.v_batch + head * scales.v_head)
    return value_scale
