"""Which schedules of flash attention in Gluon for Hopper are valid, and which cannot pay."""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.search_spaces import bounds
from autotune.search_spaces.flash_attention.warp_groups import REGISTERS, ROWS, part_widths
from autotune.shape import AttentionShape
from autotune.space import Config

OTHER_REGISTERS: Final = 32  # row maxima and sums, addresses, the loop: typical of the compiled sample
GROUP_THREADS: Final = 128
BARRIER_BYTES: Final = 512  # and more than the alignment of tiles takes
FEW_KEYS: Final = 512  # that a row sees: of more, little of a long block is wasted on the edges of a mask
HELD_KEYS: Final = 384  # of a ring: copies are one block ahead of the products, and a second one in their stead


def supports(shape: AttentionShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if not device.has("wgmma"):
        return f"flash_attention/gluon_hopper needs products of warp groups, which {device.arch} does not have"
    if ITEM_BYTES[shape.dtype] != 2:
        return f"flash_attention/gluon_hopper computes 16 bits, not {shape.dtype}"
    title = "flash_attention/gluon_hopper"
    return bounds.operands(title, shape) or bounds.too_wide(title, shape)


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    return _too_large(config, shape, device) or _needless(config, shape, device) or indifferent(config, shape)


def _too_large(config: Config, shape: AttentionShape, device: Device) -> str | None:
    consumers, block_k = config.integer("consumers"), config.integer("BLOCK_K")
    width_k, width_v = widths(shape)
    live = (width_v + block_k + block_k // 2) * ROWS // GROUP_THREADS + OTHER_REGISTERS
    taken = shared_bytes(config, shape)
    if (consumers - 1) * ROWS >= shape.seq_q:
        return f"consumers={consumers} have more rows than a length of {shape.seq_q}"
    if live > REGISTERS[consumers]:
        return f"{live} registers a thread are in use, each of {consumers} consumers has {REGISTERS[consumers]}"
    if taken > device.shared_memory_bytes:
        return f"tiles take {taken} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    if config["results"] == "queries" and width_k < width_v:
        return f"results as wide as {width_v} do not leave through the memory of queries as wide as {width_k}"
    return bounds.too_long("BLOCK_K", block_k, max(64, shape.seq_kv), f"length of {shape.seq_kv}")


def _needless(config: Config, shape: AttentionShape, device: Device) -> str | None:
    block_k, widest = config.integer("BLOCK_K"), max(widths(shape))
    if block_k < 128 and widest <= 128 and keys_seen(shape) > FEW_KEYS and not shape.softcap:
        return f"BLOCK_K={block_k} pays for wide heads, softcap or few keys: of {widest} columns, up to {FEW_KEYS}"
    if (problem := too_deep(config, HELD_KEYS) or too_few_consumers(config, shape, device)) is not None:
        return problem
    with_own = Config({**config, "results": "own"})
    if config["results"] == "queries" and shared_bytes(with_own, shape) <= device.shared_memory_bytes:
        return "results=queries saves shared memory that the device has"
    return None


def too_deep(config: Config, held: int) -> str | None:
    """Return why a ring of more than so many keys does not pay, or None."""
    block_k, slots = config.integer("BLOCK_K"), config.integer("slots")
    if slots * block_k > held:
        return f"slots={slots} of BLOCK_K={block_k} are more than {held} keys, which keep copies far enough ahead"
    return None


def too_few_consumers(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why one consumer does not pay where tiles of two suffice for the device, or None."""
    if (
        config["consumers"] == 1
        and shape.seq_q > ROWS
        and shape.batch * shape.heads * math.ceil(shape.seq_q / (2 * ROWS)) >= device.sm_count
    ):
        return f"consumers=1 pays where tiles of two are fewer than the device's {device.sm_count} multiprocessors"
    return None


def indifferent(config: Config, shape: AttentionShape) -> str | None:
    """Return why turns or an order of tiles make no difference, or None."""
    consumers = config.integer("consumers")
    if config["ping_pong"] != "off" and consumers == 1:
        return "ping_pong: one consumer takes no turns"
    for name, usual in {"section": 1, "row_order": "natural"}.items():
        if config[name] != usual and not tiles_differ(shape, consumers):
            return f"{name} only matters where tiles of a head see different numbers of keys"
    return None


def tiles_differ(shape: AttentionShape, consumers: int) -> bool:
    """Return True if tiles of a head may see different numbers of keys, so that their order matters."""
    return (shape.causal or shape.window is not None) and shape.seq_q > consumers * ROWS


def keys_seen(shape: AttentionShape) -> int:
    """Return the keys that a row of a causal mask sees at most, and of none as many of its window."""
    return min(shape.seq_kv, shape.window or shape.seq_kv)


def widths(shape: AttentionShape) -> tuple[int, int]:
    """Return the columns that tiles of queries and keys have, all parts together, and those of values."""
    parts, width_k, width_v = part_widths(shape.head_dim, shape.head_dim_v)
    return parts * width_k, width_v


def shared_bytes(config: Config, shape: AttentionShape) -> int:
    """Return the bytes of shared memory that a config's tiles and barriers take."""
    width_k, width_v = widths(shape)
    rows = ROWS * config.integer("consumers")
    queries = rows * width_k * config.integer("query_slots")
    columns = config.integer("slots") * config.integer("BLOCK_K") * (width_k + width_v) + queries
    if config["results"] == "own":
        columns += rows * width_v
    return columns * ITEM_BYTES[shape.dtype] + BARRIER_BYTES
