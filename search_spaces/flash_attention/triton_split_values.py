"""The space of flash attention over split values in Triton: parameters, validity and default."""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import bounds, compiled_tiles
from autotune.search_spaces.flash_attention import triton
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space

TITLE: Final = "flash_attention/triton_split_values"
PARAMETERS: Final = (
    Parameter("BLOCK_Q", (16, 32, 64, 128)),
    Parameter("BLOCK_K", (16, 32, 64, 128)),
    Parameter("BLOCK_V", (64, 128, 256, 512)),  # columns of the values of a program
    Parameter("num_warps", (1, 2, 4, 8)),  # of 16 ptxas gives a thread too few registers for the products
    Parameter("num_stages", (1, 2, 3, 4)),
    Parameter("loads", ("pointer", "descriptor")),  # of queries, keys and values
    *bounds.WAVE_HINTS,
)

GROUP_ROWS: Final = 64  # of a matrix instruction of a warp group
MOST_PARTS: Final = 4  # programs that compute the scores of the same rows each
ADDRESS_REGISTERS: Final = triton.ADDRESS_REGISTERS + 8  # beside the live values: those of a mask, too

WideTile = tuple[int, int, int, int, int, str]  # rows of queries and of keys, columns of values, warps, stages, loads
# Of heads of 512, the spills by ``python -m tests.kernels.flash_attention.split_values_sample sm_90`` (Triton 3.6.0,
# 2026-11-26). The first took 1.01 times the best of 46 configs, by screening, and all columns at once, which spill
# nothing either, 1.39 times, in a race (NVIDIA H200, 16 heads, 4,096 tokens, causal, 2026-11-26).
HOPPER_TILE: Final[WideTile] = (64, 32, 256, 4, 3, "descriptor")
# Masks take more registers: of all columns at once 150 bytes spill, of half of them nothing.
HOPPER_TILE_OF_MASKS: Final[WideTile] = (64, 32, 256, 8, 3, "descriptor")
# By the kind of device. Without an operand heads of 512 spill 16 bytes at most, with a mask 130, of tensor memory 490.
TILES: Final[dict[str | None, WideTile]] = {
    "large": (64, 16, 256, 4, 3, "pointer"),
    "small": (64, 16, 256, 4, 2, "pointer"),
    "small with tensor maps": (64, 16, 256, 4, 2, "pointer"),
    "waves": (64, 16, 256, 4, 1, "pointer"),
    None: (64, 32, 256, 4, 2, "descriptor"),  # with tensor memory
}
# Each of the queries' columns is three numbers of bfloat16 (``tiles.precision``), in registers: all tiles spill.
TILE_OF_FLOAT32: Final[WideTile] = (16, 16, 256, 1, 1, "pointer")


def supports(shape: AttentionShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if (problem := bounds.quantized(TITLE, shape)) is not None:
        return problem
    if bounds.too_wide(TITLE, shape) is None:
        widths = f"head_dim={shape.head_dim} and head_dim_v={shape.head_dim_v}"
        return f"{TITLE} computes heads wider than {bounds.MAX_WIDTH}, and the shape has {widths}"
    return None


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    if (problem := supports(shape, device)) is not None:
        return problem
    names = ("BLOCK_Q", "BLOCK_K", "BLOCK_V", "num_warps", "num_stages")
    block_q, block_k, block_v, warps, stages = map(config.integer, names)
    _, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    if block_v > width_v:
        return f"BLOCK_V={block_v} is wider than the padded values of {width_v}"
    if (parts := -(-shape.head_dim_v // block_v)) > MOST_PARTS:
        return f"BLOCK_V={block_v} computes the scores of head_dim_v={shape.head_dim_v} {parts} times"
    return (
        bounds.too_long("BLOCK_Q", block_q, shape.seq_q, f"length of {shape.seq_q}")
        or bounds.too_long("BLOCK_K", block_k, shape.seq_kv, f"length of {shape.seq_kv}")
        or bounds.too_many_live(block_q, block_v + block_k, warps * device.warp_size)
        or bounds.too_few_rows(block_q, warps, _rows_per_warp(block_q, shape, device))
        or _too_large(config, shape, device)
        or bounds.needless_stages(stages, device)
    )


def _multiplies_by_groups(block_q: int, shape: AttentionShape, device: Device) -> bool:
    return device.has("wgmma") and ITEM_BYTES[shape.dtype] == 2 and block_q >= GROUP_ROWS


def _rows_per_warp(block_q: int, shape: AttentionShape, device: Device) -> int:
    """Return the least rows of a warp: two warp groups may share theirs, each with half of the columns."""
    shares = _multiplies_by_groups(block_q, shape, device)
    return triton.ROWS_PER_WARP // 2 if shares else triton.ROWS_PER_WARP


def _too_large(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why shared memory does not hold the tiles, or None: warp groups have all stages there, and the queries."""
    stages = config.integer("num_stages")
    if stages == 1 or not _multiplies_by_groups(config.integer("BLOCK_Q"), shape, device):
        return bounds.too_large_pipeline(_tile_bytes(config, shape), stages, device)
    if (held := _held_bytes(config, shape)) > device.shared_memory_bytes:
        return f"tiles take {held} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    return None


def _tile_bytes(config: Config, shape: AttentionShape) -> int:
    width_k, _ = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    return config.integer("BLOCK_K") * (width_k + config.integer("BLOCK_V")) * ITEM_BYTES[shape.dtype]


def _held_bytes(config: Config, shape: AttentionShape) -> int:
    """Return the bytes of a tile of queries, and of the keys and values of all stages."""
    width_k, _ = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    queries = config.integer("BLOCK_Q") * width_k * ITEM_BYTES[shape.dtype]
    return queries + config.integer("num_stages") * _tile_bytes(config, shape)


def default(shape: AttentionShape, device: Device) -> Config:
    """Return a tile that fits every GPU of its kind, and of 16 bits spills least."""
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    block_q, block_k, block_v, warps, stages, loads = _default_tile(shape, device)
    block_q = min(block_q, bounds.padded_length(shape.seq_q))
    return Config(
        BLOCK_Q=block_q,
        BLOCK_K=min(block_k, bounds.padded_length(shape.seq_kv)),
        BLOCK_V=min(block_v, bounds.padded_widths(shape.head_dim, shape.head_dim_v)[1]),
        num_warps=min(warps, block_q // _rows_per_warp(block_q, shape, device)),
        num_stages=stages,
        loads=loads,
        **bounds.usual_wave_hints(device),
    )


def _default_tile(shape: AttentionShape, device: Device) -> WideTile:
    if ITEM_BYTES[shape.dtype] != 2:
        return TILE_OF_FLOAT32
    kind = compiled_tiles.kind_of_unrecorded(device)
    if kind is None and bounds.padded_length(shape.seq_q) < GROUP_ROWS:
        kind = "large"  # no warp group multiplies so few rows
    elif device.has("wgmma"):
        return HOPPER_TILE if shape.attn_mask is None else HOPPER_TILE_OF_MASKS
    return TILES[kind]


def hints(config: Config, shape: AttentionShape, device: Device) -> tuple[float, ...]:
    """Estimate what the time depends on smoothly: log2 of the live values a thread, of a warp's rows, of the shared
    memory of a block, of the warps that an SM holds at once, and of the products beside those of one program alone."""
    names = ("BLOCK_Q", "BLOCK_K", "BLOCK_V", "num_warps")
    block_q, block_k, block_v, warps = map(config.integer, names)
    threads = warps * device.warp_size
    live = block_q * (block_v + block_k) / threads
    held = _held_bytes(config, shape)
    at_once = bounds.blocks_at_once(live + ADDRESS_REGISTERS, threads, held, device)
    products = -(-shape.head_dim_v // block_v) * shape.head_dim + shape.head_dim_v
    return tuple(math.log2(value) for value in (live, block_q / warps, held, warps * at_once, products))


def default_basis(device: Device) -> str:
    """Return that the default was compiled, and on which devices it was timed."""
    timed = "timed at one shape on an NVIDIA H200" if device.has("wgmma") else "timed on no GPU"
    return f"chosen by compiled resources, and {timed}"


IMPLEMENTATION: Final = Implementation(
    name="triton_split_values",
    operation="flash_attention",
    space=Space(PARAMETERS, reject, default, hints, default_basis=default_basis),
    kernel="autotune.kernels.flash_attention.triton_split_values:KERNEL",
    sources=(*kernel_files("flash_attention/triton_split_values", "forward", "launch"), *SHARED),
    entry=("launch",),
    supports=supports,
)
