"""The space of flash attention in Gluon for Hopper: parameters, validity and default.

It is not registered with the package yet: no GPU has run its kernel. ``benchmarks.gluon_forward`` registers it.
"""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.implementation import Implementation
from autotune.search_spaces import bounds
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space

PARAMETERS: Final = (
    Parameter("consumers", (1, 2, 3)),  # groups of four warps, of 64 rows of queries each
    Parameter("BLOCK_K", (64, 128)),
    Parameter("slots", (2, 3, 4)),  # of the rings of keys and of values
    Parameter("ping_pong", ("off", "issue", "complete")),
    Parameter("values", ("late", "early")),
    Parameter("results", ("own", "queries")),  # the memory that they leave through
    Parameter("workers", ("tiles", "sm", "sm-1", "sm-3", "2sm")),  # programs: one a tile, or so many in all
    Parameter("tile_order", ("rows", "heads")),
    Parameter("row_order", ("natural", "reversed", "alternating")),
)

ROWS: Final = 64  # of a consumer
# A thread's registers by the number of consumers: with the 24 of the producer's they fill an SM's 65,536, in steps of
# 8 (PTX ISA 8.5, setmaxnreg).
REGISTERS: Final = {1: 240, 2: 240, 3: 160}
OTHER_REGISTERS: Final = 40  # row maxima and sums, addresses, the loop: typical of the compiled sample
GROUP_THREADS: Final = 128
BARRIER_BYTES: Final = 512  # and more than the alignment of tiles takes
MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 256  # of one product of a warp group


def supports(shape: AttentionShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if not device.has("wgmma"):
        return f"flash_attention/gluon_hopper needs products of warp groups, which {device.arch} does not have"
    if ITEM_BYTES[shape.dtype] != 2:
        return f"flash_attention/gluon_hopper computes 16 bits, not {shape.dtype}"
    return None


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    consumers, block_k = config.integer("consumers"), config.integer("BLOCK_K")
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    live = (width_v + block_k + block_k // 2) * ROWS // GROUP_THREADS + OTHER_REGISTERS
    taken = shared_bytes(config, shape)
    if (consumers - 1) * ROWS >= shape.seq_q:
        return f"consumers={consumers} have more rows than a length of {shape.seq_q}"
    if live > REGISTERS[consumers]:
        return f"{live} registers a thread are in use, each of {consumers} consumers has {REGISTERS[consumers]}"
    if taken > device.shared_memory_bytes:
        return f"tiles take {taken} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    if config["ping_pong"] != "off" and consumers == 1:
        return "ping_pong: one consumer takes no turns"
    if config["results"] == "queries" and width_k != width_v:
        return f"results as wide as {width_v} do not leave through the memory of queries as wide as {width_k}"
    return bounds.too_long("BLOCK_K", block_k, max(64, shape.seq_kv), f"length of {shape.seq_kv}")


def shared_bytes(config: Config, shape: AttentionShape) -> int:
    """Return the bytes of shared memory that a config's tiles and barriers take."""
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    rows = ROWS * config.integer("consumers")
    columns = config.integer("slots") * config.integer("BLOCK_K") * (width_k + width_v) + rows * width_k
    if config["results"] == "own":
        columns += rows * width_v
    return columns * ITEM_BYTES[shape.dtype] + BARRIER_BYTES


def default(shape: AttentionShape, device: Device) -> Config:
    """Return the schedule of FlashAttention-3 as far as tiles are powers of two: two consumers, 128 keys."""
    is_wide = max(bounds.padded_widths(shape.head_dim, shape.head_dim_v)) > 128
    return Config(
        consumers=min(2, math.ceil(shape.seq_q / ROWS)),
        BLOCK_K=64 if is_wide or shape.seq_kv <= 64 else 128,
        slots=2,
        ping_pong="off",
        values="late",
        results="queries" if is_wide and shape.head_dim == shape.head_dim_v else "own",
        workers="tiles" if shape.causal else "sm",
        tile_order="rows",
        row_order="reversed" if shape.causal else "natural",
    )


IMPLEMENTATION: Final = Implementation(
    name="gluon_hopper",
    operation="flash_attention",
    space=Space(PARAMETERS, reject, default),
    kernel="autotune.kernels.flash_attention.gluon_hopper:KERNEL",
    sources=(
        *kernel_files("flash_attention/gluon_hopper", "forward", "launch", "rings", "schedule"),
        *kernel_files("", "gluon"),
        *SHARED,
    ),
    entry=("launch",),
    supports=supports,
    can_interpret=False,
)
