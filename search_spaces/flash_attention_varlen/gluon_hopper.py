"""The space of attention over packed sequences in Gluon for Hopper: that of dense attention, and the order of tiles."""

import math
from pathlib import Path
from typing import Any, Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import bounds, flash_attention
from autotune.search_spaces.flash_attention import gluon_hopper_bounds as dense
from autotune.search_spaces.flash_attention.gluon_hopper import PARAMETERS as DENSE_PARAMETERS
from autotune.search_spaces.flash_attention.usual_schedule import usual_schedule
from autotune.search_spaces.flash_attention.warp_groups import ROWS
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space, Value
from autotune.varlen_shape import VarlenShape

ORDER_OF_DENSE: Final[dict[str, Any]] = {"section": 1, "row_order": "natural"}  # parameters that are not ours
PARAMETERS: Final = (
    *(each for each in DENSE_PARAMETERS if each.name not in ORDER_OF_DENSE),
    # As of ``search_spaces.flash_attention_varlen.triton``; a kernel before this one finds the order out, once a call.
    Parameter("sequences", ("packed", "longest")),
    # Which tiles are neighbours: those of one head, or the heads of one row of tiles.
    Parameter("order", ("head", "tile")),
)
ORDER: Final = ("sequences", "order")
ARGUMENT_BYTES: Final = 64  # more than what warps find in shared memory beyond dense attention's
# Products of queries, keys and values from which on to begin with the longest sequences gains more than it takes to
# find them: the best config that does takes 1.01 to 1.20 times the best that does not in 10 recorded problems of up to
# 7e10, and 0.97 to 1.0 times in 7 of 9e10 and more (NVIDIA H200, 2026-11-26; ``python -m benchmarks.record grid``).
ORDERED_PRODUCTS: Final = 8 * 10**10


def supports(shape: VarlenShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if not device.has("wgmma"):
        return f"flash_attention_varlen/gluon_hopper needs products of warp groups, which {device.arch} does not have"
    if ITEM_BYTES[shape.dtype] != 2:
        return f"flash_attention_varlen/gluon_hopper computes 16 bits, not {shape.dtype}"
    return None


def reject(config: Config, shape: VarlenShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    if config["sequences"] == "longest" and shape.is_even:
        return "sequences='longest' does not pay: all are equally long"
    if (taken := shared_bytes(config, shape)) > device.shared_memory_bytes:
        return f"tiles take {taken} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    values = {name: value for name, value in config.items() if name not in ORDER}
    return dense.reject(Config({**values, **ORDER_OF_DENSE}), as_dense(shape), device)


def shared_bytes(config: Config, shape: VarlenShape) -> int:
    """Return the bytes of shared memory that a config's tiles, barriers and arguments take."""
    return dense.shared_bytes(config, as_dense(shape)) + ARGUMENT_BYTES


def as_dense(shape: VarlenShape) -> AttentionShape:
    """Return the problem of as many longest sequences as have about as many queries."""
    names = ("heads", "kv_heads", "head_dim", "head_dim_v", "dtype", "causal", "window", "softcap")
    return AttentionShape(
        **{name: getattr(shape, name) for name in names},
        batch=math.ceil(shape.batch * shape.mean_seq_q / shape.max_seq_q),
        seq_q=shape.max_seq_q,
        seq_kv=shape.max_seq_kv,
    )


def default(shape: VarlenShape, device: Device) -> Config:
    """Return the usual schedule of dense attention over the longest sequences, as far as sequences are like these.

    Three consumers, whose tiles are the longest, are for sequences that have as many rows in the mean. Of the recorded
    problems of packed sequences and paged prefill at which it was timed, 31 and 32, it takes 1.019 and 1.008 times the
    best in the geometric mean, 1.10 times at worst (NVIDIA H200; ``python -m benchmarks.portfolios --list``).
    """
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    usual = usual_schedule(as_dense(shape), device)
    values: dict[str, Any] = {name: value for name, value in usual.items() if name not in ORDER_OF_DENSE}
    values["consumers"] = min(usual.integer("consumers"), max(2, math.ceil(shape.mean_seq_q / ROWS)))
    is_sorted = not shape.is_even and _products(shape) >= ORDERED_PRODUCTS
    values |= _schedule(shape) | _tile_of_few(shape, device)
    config = Config(**values, sequences="longest" if is_sorted else "packed", order="tile")
    with_own = Config({**config, "results": "own"})
    return with_own if shared_bytes(with_own, shape) <= device.shared_memory_bytes else config


def _schedule(shape: VarlenShape) -> dict[str, Value]:
    """Return what recorded problems want otherwise than dense ones; nothing elsewhere.

    Rows that see few keys: short blocks, of a worker a multiprocessor (0.92 to 0.95 times the dense schedule). Causal
    chunks after as many cached tokens, whose tiles are nearly alike: two workers, the second of which begins where the
    first has ended (0.91 to 1.0 times). Causal heads of 256: a program for each tile (0.91 to 0.97 times; all NVIDIA
    H200, 2026-11-26 and 27, ``python -m benchmarks.record grid``).
    """
    seen = min(shape.mean_seq_kv, shape.window or shape.mean_seq_kv)
    longest = min(shape.max_seq_kv, shape.window or shape.max_seq_kv)
    if seen <= bounds.NARROW_WINDOW and longest <= dense.FEW_KEYS:
        return {"BLOCK_K": 64, "slots": 2, "workers": "sm"}
    if not shape.causal or longest < shape.max_seq_kv:
        return {}
    if shape.batch == 1 and shape.max_seq_kv >= 2 * shape.max_seq_q:
        return {"workers": "2sm"}
    is_square = shape.max_seq_kv == shape.max_seq_q
    return {"workers": "tiles"} if is_square and max(shape.head_dim, shape.head_dim_v) > 192 else {}


def _tile_of_few(shape: VarlenShape, device: Device) -> dict[str, Value]:
    """Return tiles of one consumer where those of two leave half of the multiprocessors without work.

    So it is in one recorded problem, a causal chunk of 512 queries of 16 heads of 128 after cached tokens, copied from
    e4m3: 0.82 times as long (NVIDIA H200, 2026-11-27; ``python -m benchmarks.record grid``).
    """
    similar = as_dense(shape)
    tiles = similar.batch * similar.heads * math.ceil(similar.seq_q / (2 * ROWS))
    is_recorded = shape.causal and shape.max_seq_kv > shape.max_seq_q and max(shape.head_dim, shape.head_dim_v) <= 128
    has_few = similar.seq_q > ROWS and 2 * tiles <= device.sm_count
    return {"consumers": 1, "ping_pong": "off", "values": "late"} if is_recorded and has_few else {}


def _products(shape: VarlenShape) -> int:
    """Return about how many numbers a call multiplies, by mean lengths."""
    keys = shape.mean_seq_kv
    if shape.causal:
        keys -= min(shape.mean_seq_q, keys) // 2
    seen = min(keys, shape.window or keys)
    return shape.batch * shape.heads * shape.mean_seq_q * seen * (shape.head_dim + shape.head_dim_v)


IMPLEMENTATION: Final = Implementation(
    name="gluon_hopper",
    operation="flash_attention_varlen",
    space=Space(PARAMETERS, reject, default),
    kernel="autotune.kernels.flash_attention_varlen.gluon_hopper:KERNEL",
    sources=(
        *kernel_files(
            "flash_attention_varlen/gluon_hopper", "forward", "launch", "padded_rows", "ragged", "tile_table"
        ),
        *kernel_files("flash_attention_varlen/triton", "sequence_order"),
        *kernel_files("flash_attention/gluon_hopper", "forward", "launch", "rings", "schedule", "turns", "weights"),
        *kernel_files("", "gluon"),
        Path(flash_attention.__file__).with_name("warp_groups.py"),
        *SHARED,
    ),
    entry=("launch_packed",),
    supports=supports,
    can_interpret=False,
)
