"""The space of flash attention in Gluon for Hopper: parameters, validity and default."""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import bounds
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space

PARAMETERS: Final = (
    Parameter("consumers", (1, 2, 3)),  # groups of four warps, of 64 rows of queries each
    Parameter("BLOCK_K", (64, 128)),
    Parameter("slots", (2, 3, 4)),  # of the rings of keys and of values
    Parameter("query_slots", (1, 2)),  # tiles whose queries are held at once
    Parameter("ping_pong", ("off", "issue", "complete")),
    Parameter("values", ("late", "early")),
    Parameter("results", ("own", "queries")),  # the memory that they leave through
    Parameter("workers", ("tiles", "sm", "sm-1", "sm-3", "2sm")),  # programs: one a tile, or so many in all
    Parameter("section", (1, 4, 16)),  # heads whose tiles of the same rows come one after the other
    Parameter("row_order", ("natural", "reversed", "alternating")),
)

ROWS: Final = 64  # of a consumer
# A thread's registers by the number of consumers: with the 24 of the producer's they fill an SM's 65,536, in steps of
# 8 (PTX ISA 8.5, setmaxnreg).
REGISTERS: Final = {1: 240, 2: 240, 3: 160}
OTHER_REGISTERS: Final = 32  # row maxima and sums, addresses, the loop: typical of the compiled sample
GROUP_THREADS: Final = 128
BARRIER_BYTES: Final = 512  # and more than the alignment of tiles takes
LONG: Final = 2**19  # elements of a head's keys: of more, the order of tiles matters more than turns


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
    queries = rows * width_k * config.integer("query_slots")
    columns = config.integer("slots") * config.integer("BLOCK_K") * (width_k + width_v) + queries
    if config["results"] == "own":
        columns += rows * width_v
    return columns * ITEM_BYTES[shape.dtype] + BARRIER_BYTES


def default(shape: AttentionShape, device: Device) -> Config:
    """Return a schedule like those that won over heads of 64 and 128, both masks and lengths of 512 to 16,384."""
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    widest = max(width_k, width_v)
    is_long = shape.seq_kv * widest >= LONG
    consumers = 3 if widest <= 64 and (is_long or not shape.causal) else 2
    block_k = 64 if widest > 128 or shape.seq_kv <= 64 else 128
    takes_turns = widest <= 64 or shape.causal or not is_long
    is_small = widest <= 64 and consumers == 2
    return Config(
        consumers=min(consumers, math.ceil(shape.seq_q / ROWS)),
        BLOCK_K=block_k,
        slots=2,
        query_slots=2 if widest <= 128 else 1,
        ping_pong="issue" if takes_turns and shape.seq_q > ROWS else "off",
        values="early" if takes_turns and not is_small else "late",
        results="queries" if widest > 128 and width_k == width_v else "own",
        workers="sm",
        section=16 if widest <= 64 and shape.causal and not is_long else 1,
        row_order="natural" if not shape.causal else "alternating" if widest > 64 or is_long else "reversed",
    )


IMPLEMENTATION: Final = Implementation(
    name="gluon_hopper",
    operation="flash_attention",
    space=Space(PARAMETERS, reject, default),
    kernel="autotune.kernels.flash_attention.gluon_hopper:KERNEL",
    sources=(
        *kernel_files("flash_attention/gluon_hopper", "forward", "launch", "rings", "schedule", "weights"),
        *kernel_files("", "gluon"),
        *SHARED,
    ),
    entry=("launch",),
    supports=supports,
    can_interpret=False,
)
