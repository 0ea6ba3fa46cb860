"""The space of attention over packed sequences in Triton: parameters, validity and default."""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.implementation import Implementation
from autotune.search_spaces import bounds, compiled_tiles
from autotune.search_spaces.flash_attention.triton import tile_of_flash_attention_2
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.space import Config, Parameter, Space
from autotune.varlen_shape import VarlenShape

PARAMETERS: Final = (
    Parameter("BLOCK_Q", (16, 32, 64, 128, 256)),  # rows of a tile: queries times the query heads of a KV head
    Parameter("BLOCK_K", (16, 32, 64, 128, 256)),
    # In which order sequences are computed: as they are packed, or those of the most keys first, which every program
    # finds out for itself, so that no long one begins when all others have ended.
    Parameter("sequences", ("packed", "longest")),
    # Which programs are neighbours: the tiles of one KV head, or the KV heads of one tile.
    Parameter("order", ("head", "tile")),
    Parameter("num_warps", (1, 2, 4, 8)),
    Parameter("num_stages", (1, 2, 3, 4, 5)),
    Parameter("loads", ("pointer", "descriptor")),  # of keys and values
    *bounds.WAVE_HINTS,
)

# As of ``search_spaces.flash_attention.triton``, and there is the reason.
ROWS_PER_WARP: Final = 16

FEW_TILES: Final = 8  # for each multiprocessor

ADDRESS_REGISTERS: Final = 48  # beside the live values: as of dense attention, and the places of rows

# As in ``search_spaces.flash_attention.triton``, by the same rule.
TILES_OF_16_BITS: Final[compiled_tiles.Tiles] = {
    "large": ((64, 64, 4, 3), (64, 32, 4, 3), (64, 16, 4, 2)),
    "small": ((128, 32, 8, 3), (128, 64, 8, 3), (128, 16, 8, 2)),
    "small with tensor maps": ((64, 32, 4, 3), (64, 16, 4, 3), (128, 16, 8, 2)),
    "waves": ((128, 32, 4, 1), (64, 128, 4, 1), (64, 32, 4, 1)),
}
TILES_OF_FLOAT32: Final[compiled_tiles.Tiles] = {
    "large": ((32, 16, 2, 3), (32, 16, 2, 1), (16, 16, 1, 1)),
    "small": ((64, 16, 4, 3), (32, 16, 2, 1), (16, 16, 1, 1)),
    "small with tensor maps": ((64, 16, 4, 3), (32, 16, 2, 1), (16, 16, 1, 1)),
    "waves": ((64, 32, 4, 1), (64, 32, 4, 1), (64, 16, 4, 1)),
}


def reject(config: Config, shape: VarlenShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    block_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    rows = shape.max_seq_q * shape.group
    if config["sequences"] == "longest" and shape.is_even:
        return "sequences='longest' does not pay: all are equally long"
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    return (
        bounds.too_long("BLOCK_Q", block_q, rows, f"{rows} rows of a KV head")
        or bounds.too_long("BLOCK_K", block_k, shape.max_seq_kv, f"length of {shape.max_seq_kv}")
        or bounds.too_many_live(block_q, width_v + block_k, warps * device.warp_size)
        or bounds.too_few_rows(block_q, warps, ROWS_PER_WARP)
        or bounds.too_large_pipeline(block_k * (width_k + width_v) * ITEM_BYTES[shape.dtype], stages, device)
        or bounds.needless_stages(stages, device)
    )


def default(shape: VarlenShape, device: Device) -> Config:
    """Return a config that fits every GPU of its family, by the least shared memory that one has.

    It is what is served where no portfolio knows the architecture. On Hopper sequences of 16 bits are computed as they
    are packed: of 17 recorded problems of uneven lengths, up to 8,192 tokens and a quarter of that in the mean, the
    best config that begins with the longest is slower than the best of the others in 15, 1.06 to 1.85 times, and
    faster in one (NVIDIA H200, 2026-11-27; ``python -m benchmarks.record grid``).
    """
    width = max(bounds.padded_widths(shape.head_dim, shape.head_dim_v))
    tiles = TILES_OF_FLOAT32 if shape.dtype == "float32" else TILES_OF_16_BITS
    is_recorded = shape.dtype != "float32" and device.has("wgmma")
    block_q, block_k, warps, stages = (
        _recorded_tile(shape, width)
        if is_recorded
        else compiled_tiles.compiled_tile(tiles, width, device) or _usual_tile(shape, width, device)
    )
    block_q = min(block_q, bounds.padded_length(shape.max_seq_q * shape.group))
    return Config(
        BLOCK_Q=block_q,
        BLOCK_K=min(block_k, bounds.padded_length(shape.max_seq_kv)),
        sequences="packed" if shape.is_even or is_recorded else "longest",
        order="tile" if is_recorded and _wants_neighboring_heads(shape, width, device) else "head",
        num_warps=min(warps, block_q // ROWS_PER_WARP),
        num_stages=stages,
        loads="descriptor" if is_recorded and 64 < width <= 128 else "pointer",
        **bounds.usual_wave_hints(device, waves=2),
    )


def _recorded_tile(shape: VarlenShape, width: int) -> compiled_tiles.Tile:
    """Return the tile of recordings on Hopper: of 28 problems it takes 1.03 times the best in the geometric mean.

    The tiles of dense attention took 1.21 times (NVIDIA H200, 2026-11-27; ``python -m benchmarks.portfolios --list``).
    """
    is_narrow = shape.window is not None and shape.window <= bounds.NARROW_WINDOW
    if width <= 64:
        return (64, 16, 4, 2) if is_narrow else (64, 32, 4, 3)
    if width <= 128:
        return (64, 32 if is_narrow else 64, 4, 3)
    return (64, 32, 4, 3) if _has_narrow_values(shape) else (128, 32, 8, 3)


def _usual_tile(shape: VarlenShape, width: int, device: Device) -> compiled_tiles.Tile:
    """Return the tile where nothing is recorded or chosen by compiled resources: that of dense attention.

    Of 16 bits it is the choice of ``benchmarks.architecture_defaults``'s rule for sm_90, and loads are.
    """
    rows = bounds.padded_length(shape.max_seq_q * shape.group)
    if shape.dtype != "float32":
        block_q, block_k, warps = (128, 64, 8) if width <= 64 else (64, 64, 4) if width <= 128 else (128, 32, 8)
        return min(block_q, rows), block_k, warps, 3
    if device.has("wgmma"):
        block_q, block_k, stages = (64, 64, 2) if width <= 64 else (64, 32, 1) if width <= 128 else (128, 16, 1)
    else:
        block_q, block_k, stages = (32, 32, 3) if width <= 64 else (32, 16, 1) if width <= 128 else (16, 16, 1)
    return block_q, block_k, 4 if min(block_q, rows) * width <= 128 * 64 else 8, stages


def _wants_neighboring_heads(shape: VarlenShape, width: int, device: Device) -> bool:
    """Return True if the KV heads of one tile had better be neighbours than the tiles of one KV head.

    So it was of narrow heads and of narrow values (1.02 to 1.11 times as fast), and of few tiles (1.0 to 1.25 times;
    NVIDIA H200, 2026-11-27; ``python -m benchmarks.record grid``).
    """
    tiles = shape.batch * shape.kv_heads * math.ceil(shape.mean_seq_q * shape.group / 64)
    return width <= 64 or (width > 128 and _has_narrow_values(shape)) or tiles < FEW_TILES * device.sm_count


def _has_narrow_values(shape: VarlenShape) -> bool:
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    return width_v < width_k


def heuristics(shape: VarlenShape, device: Device) -> tuple[Config, ...]:
    """Return the tile of FlashAttention-2, whose packed sequences have the dense one; none of float32, which it lacks.

    Sequences are computed as they are packed. It has no stages, so three; tiles are loaded as in dense attention.
    """
    if shape.dtype == "float32":
        return ()
    block_q, block_k, warps = tile_of_flash_attention_2(shape, device)
    config = Config(
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        sequences="packed",
        order="head",
        num_warps=warps,
        num_stages=3,
        loads="descriptor" if device.has("tensor_maps") else "pointer",
        **bounds.usual_wave_hints(device),
    )
    return (config,)


def hints(config: Config, shape: VarlenShape, device: Device) -> tuple[float, ...]:
    """Estimate what the time depends on smoothly: log2 of the live values a thread, of a warp's rows, of the shared
    memory of a block, of the warps that an SM holds at once, and of the tiles for each block of the device."""
    of_block = bounds.estimates(config, shape, device, other_registers=ADDRESS_REGISTERS)
    resident = of_block[-1] / config.integer("num_warps")
    tiles = shape.batch * shape.kv_heads * -(-shape.mean_seq_q * shape.group // config.integer("BLOCK_Q"))
    return tuple(math.log2(value) for value in (*of_block, tiles / resident / device.sm_count))


IMPLEMENTATION: Final = Implementation(
    name="triton",
    operation="flash_attention_varlen",
    space=Space(PARAMETERS, reject, default, hints, heuristics=heuristics, default_basis=compiled_tiles.default_basis),
    kernel="autotune.kernels.flash_attention_varlen.triton:KERNEL",
    sources=(
        *kernel_files("flash_attention_varlen/triton", "forward", "launch", "sequence_order"),
        *SHARED,
    ),
    entry=("launch",),
)
