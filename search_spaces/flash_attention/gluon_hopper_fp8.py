"""The space of flash attention of e4m3 in Gluon for Hopper: parameters, validity and default."""

import math
from functools import lru_cache
from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.dtypes import QUANTIZED_DTYPES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import bounds
from autotune.search_spaces.flash_attention.byte_groups import byte_widths, value_parts
from autotune.search_spaces.flash_attention.gluon_hopper_bounds import (
    BARRIER_BYTES,
    GROUP_THREADS,
    indifferent,
    too_deep,
    too_few_consumers,
)
from autotune.search_spaces.flash_attention.tile_order import soonest_order
from autotune.search_spaces.flash_attention.usual_schedule import LONG
from autotune.search_spaces.flash_attention.warp_groups import REGISTERS, ROWS
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space

PARAMETERS: Final = (
    Parameter("consumers", (1, 2, 3)),  # groups of four warps, of 64 rows of queries each
    Parameter("BLOCK_K", (64, 128, 256)),
    Parameter("slots", (2, 3, 4)),  # of the rings of keys and of values
    Parameter("query_slots", (1, 2)),  # tiles whose queries are held at once
    Parameter("ping_pong", ("off", "issue")),  # whether consumers take turns to issue their scores
    Parameter("values", ("late", "early")),
    Parameter("sums", ("block", "running")),  # of weighted values, by the matrix unit: of a block, or of all
    Parameter("workers", ("tiles", "sm", "sm-1", "sm-3", "2sm")),  # programs: one a tile, or so many in all
    Parameter("section", (1, 4, 16)),  # heads whose tiles of the same rows come one after the other
    Parameter("row_order", ("natural", "reversed", "alternating")),
)

RESULT_BYTES: Final = 2
# Beside those of rows and columns. Three consumers with blocks of 128 keys and 64 columns spill some 70 bytes in the
# sample, all of them outside the loop over keys, and are the fastest without a mask.
OTHER_REGISTERS: Final = 16
CAP_REGISTERS: Final = 8  # of hyperbolic tangents: beside sums of blocks of 128 keys and columns the sample spilled
NARROW: Final = 64  # columns of heads whose consumers hold few enough registers for three of them
STEP: Final = 16  # elements that tensor maps take rows of multiples of
# Each 32 keys sums may be off by another 33 x 2 ** -13 of themselves (docs/fp8-forward.md), weights by 2 ** -4 in all.
RUNNING_KEYS: Final = 2**9 * 32 // 33
FEW_KEYS: Final = 512  # that a row sees: of more, short blocks waste little on the edges of a mask
HELD_KEYS: Final = 512  # of a ring: copies are one block ahead of the products, and a second one in their stead


def supports(shape: AttentionShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if not device.has("wgmma"):
        return f"flash_attention/gluon_hopper_fp8 needs products of warp groups, which {device.arch} does not have"
    if shape.dtype not in QUANTIZED_DTYPES:
        return f"flash_attention/gluon_hopper_fp8 computes {' and '.join(QUANTIZED_DTYPES)}, not {shape.dtype}"
    if shape.head_dim % STEP:
        return f"flash_attention/gluon_hopper_fp8 takes multiples of {STEP}, not head_dim={shape.head_dim}"
    title = "flash_attention/gluon_hopper_fp8"
    return bounds.operands(title, shape) or bounds.too_wide(title, shape)


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    return (
        supports(shape, device)
        or _too_large(config, shape, device)
        or _needless(config, shape, device)
        or indifferent(config, shape)
    )


def live_registers(block_k: int, sums: str, shape: AttentionShape) -> int:
    """Return the registers a thread that hold scores, weights and sums: those of a block beside those of all."""
    _, _, width_v = byte_widths(shape.head_dim, shape.head_dim_v)
    of_block = width_v // value_parts(width_v, block_k, sums) if sums == "block" else 0
    columns = block_k + block_k // 4 + width_v + of_block
    return columns * ROWS // GROUP_THREADS + OTHER_REGISTERS + (CAP_REGISTERS if shape.softcap else 0)


def _too_large(config: Config, shape: AttentionShape, device: Device) -> str | None:
    consumers, block_k = config.integer("consumers"), config.integer("BLOCK_K")
    live = live_registers(block_k, str(config["sums"]), shape)
    taken = shared_bytes(config, shape)
    if (consumers - 1) * ROWS >= shape.seq_q:
        return f"consumers={consumers} have more rows than a length of {shape.seq_q}"
    if live > REGISTERS[consumers]:
        return f"{live} registers a thread are in use, each of {consumers} consumers has {REGISTERS[consumers]}"
    if taken > device.shared_memory_bytes:
        return f"tiles take {taken} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    return bounds.too_long("BLOCK_K", block_k, max(64, shape.seq_kv), f"length of {shape.seq_kv}")


def _needless(config: Config, shape: AttentionShape, device: Device) -> str | None:
    block_k, keys = config.integer("BLOCK_K"), _seen(shape)
    if config["sums"] == "running" and keys > RUNNING_KEYS:
        return f"sums=running of {keys} keys are less exact than weights; of up to {RUNNING_KEYS} they are not"
    if block_k < 128 and max(shape.head_dim, shape.head_dim_v) <= 64 and keys > FEW_KEYS:
        return f"BLOCK_K={block_k} pays for wide heads or few keys: of heads up to 64, up to {FEW_KEYS}"
    return too_deep(config, HELD_KEYS) or too_few_consumers(config, shape, device)


def _seen(shape: AttentionShape) -> int:
    """Return the keys that a row sees at most."""
    if shape.window is None:
        return shape.seq_kv
    return min(shape.seq_kv, shape.window if shape.causal else 2 * shape.window - 1)


def shared_bytes(config: Config, shape: AttentionShape) -> int:
    """Return the bytes of shared memory that a config's tiles and barriers take."""
    parts, width, width_v = byte_widths(shape.head_dim, shape.head_dim_v)
    rows = ROWS * config.integer("consumers")
    rings = config.integer("slots") * config.integer("BLOCK_K") * (parts * width + width_v)
    return rings + rows * (parts * width * config.integer("query_slots") + RESULT_BYTES * width_v) + BARRIER_BYTES


@lru_cache(maxsize=1024)
def default(shape: AttentionShape, device: Device) -> Config:
    """Return a schedule like the fastest of some 110 that an NVIDIA H200 timed on 2026-11-28.

    Those were of heads of 64, 128 and 256 over 1,024 to 16,384 tokens, each launched for 80 ms: sums of blocks as long
    as registers hold, and consumers that take no turns. Three consumers of narrow heads were the faster without a mask
    (1.16 times, 16,384 tokens), two with one (1.7 times, 4,096). Tiles that differ come in the order whose end is
    estimated the soonest: as far as all times of a tile are in proportion to those of 16 bits.
    """
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    widest, seen = max(shape.head_dim, shape.head_dim_v), _seen(shape)
    is_long = seen * widest >= LONG
    most = 3 if widest <= NARROW and seen > FEW_KEYS and not shape.causal else 2
    # With hyperbolic tangents and sums of 128 columns, blocks of 128 keys spill 176 bytes in the sample.
    sizes = (64,) if seen <= 64 or (shape.softcap and widest > NARROW) else (128, 64)
    tiles = [(consumers, size) for size in sizes for consumers in range(most, 1, -1)]
    held = [(each, size) for each, size in tiles if live_registers(size, "block", shape) <= REGISTERS[each]]
    consumers, block_k = min(held[0][0], math.ceil(shape.seq_q / ROWS)), held[0][1]
    return Config(
        consumers=consumers,
        BLOCK_K=block_k,
        slots=2,
        query_slots=2 if widest <= 2 * NARROW and not is_long else 1,
        ping_pong="off",
        values="early",
        sums="block",
        **soonest_order(shape, device, consumers, block_k),
    )


IMPLEMENTATION: Final = Implementation(
    name="gluon_hopper_fp8",
    operation="flash_attention",
    space=Space(PARAMETERS, reject, default),
    kernel="autotune.kernels.flash_attention.gluon_hopper_fp8:KERNEL",
    sources=(
        *kernel_files(
            "flash_attention/gluon_hopper_fp8", "forward", "launch", "byte_schedule", "values", "byte_weights"
        ),
        *kernel_files("flash_attention/gluon_hopper", "forward", "launch", "rings", "schedule", "turns", "weights"),
        *kernel_files("", "gluon"),
        *(Path(__file__).with_name(f"{name}.py") for name in ("warp_groups", "byte_groups")),
        *SHARED,
    ),
    entry=("launch_bytes",),
    supports=supports,
    can_interpret=False,
)
