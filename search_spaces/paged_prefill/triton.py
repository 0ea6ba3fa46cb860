"""The space of paged prefill in Triton: parameters, validity and default."""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES, KV_ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import bounds, compiled_tiles
from autotune.search_spaces.paged_prefill.operation import unsupported
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import PagedShape
from autotune.space import Config, Parameter, Space

PARAMETERS: Final = (
    Parameter("BLOCK_Q", (16, 32, 64, 128, 256)),  # rows of a tile: queries times the query heads of a KV head
    # Tiles of no more rows than this, those of decode steps among the chunks, are computed as such; 0: none are.
    Parameter("SMALL_Q", (0, 16)),
    Parameter("BLOCK_K", (16, 32, 64, 128, 256)),
    # Which programs are neighbours: the tiles of one KV head, or the KV heads of one tile.
    Parameter("order", ("head", "tile")),
    Parameter("num_warps", (1, 2, 4, 8)),
    Parameter("num_stages", (1, 2, 3, 4, 5)),
    *bounds.WAVE_HINTS,
)

# 16-byte loads of a tile of keys and one of values, whose addresses a thread holds at once.
MAX_LOADS: Final = 64
# Matrix instructions have 16 rows. Four warps may split their columns, so that each holds a part of a wide accumulator;
# more would exchange ever more partial maxima.
ROWS_PER_WARP: Final = 4

ADDRESS_REGISTERS: Final = 72  # beside the live values; typical of compiled configs

# As in ``search_spaces.flash_attention.triton``, by the same rule.
TILES_OF_16_BITS: Final[compiled_tiles.Tiles] = {
    "large": ((64, 64, 4, 3), (64, 32, 4, 3), (64, 16, 4, 3)),
    "small": ((64, 64, 4, 3), (128, 64, 8, 3), (128, 16, 8, 2)),
    "small with tensor maps": ((64, 64, 4, 3), (128, 32, 8, 3), (128, 16, 8, 2)),
    "waves": ((128, 64, 8, 1), (128, 32, 8, 1), (128, 64, 8, 1)),
}
TILES_OF_FLOAT32: Final[compiled_tiles.Tiles] = {
    "large": ((32, 16, 2, 3), (32, 16, 2, 1), (16, 16, 1, 1)),
    "small": ((64, 16, 4, 1), (32, 16, 2, 1), (16, 16, 1, 1)),
    "small with tensor maps": ((64, 16, 4, 3), (32, 16, 2, 1), (32, 16, 2, 1)),
    "waves": ((64, 32, 4, 1), (64, 32, 4, 1), (32, 16, 2, 1)),
}
# Over caches of one byte an element, whose tiles are converted in registers.
TILES_OF_BYTES: Final[compiled_tiles.Tiles] = {
    "large": ((64, 64, 4, 3), (128, 32, 8, 3), (64, 32, 8, 3)),
    "small": ((128, 64, 8, 3), (128, 32, 8, 3), (64, 32, 8, 3)),
    "small with tensor maps": ((128, 64, 8, 3), (128, 32, 8, 3), (64, 32, 8, 3)),
    "waves": TILES_OF_16_BITS["waves"],
}
MAX_COMPILED_WIDTH: Final = 256  # of heads
LONG_CONTEXT: Final = 8192  # keys that a row sees: of 4,096 the smaller tile was as fast, of 32,768 the larger one won


def reject(config: Config, shape: PagedShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    block_q, small_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "SMALL_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    if (problem := unsupported(shape) or bounds.lacks_cache_type(shape, device)) is not None:
        return problem
    rows = shape.batch * shape.seq_q * shape.group  # of one KV head; one sequence may have nearly all
    reason = bounds.too_long("BLOCK_Q", block_q, rows, f"{rows} rows of a KV head") or bounds.too_long(
        "BLOCK_K", block_k, shape.max_context, f"context of {shape.max_context}"
    )
    if reason is not None:
        return reason
    if small_q >= block_q:
        return f"SMALL_Q={small_q} is not less than BLOCK_Q={block_q}"
    if small_q and shape.batch == 1:
        return f"SMALL_Q={small_q} does not pay: a single sequence has one short tile at most"
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    tile_bytes, threads = block_k * (width_k + width_v) * KV_ITEM_BYTES[shape.kv_dtype], warps * device.warp_size
    return (
        bounds.too_few_rows(block_q, warps, ROWS_PER_WARP)
        or bounds.too_many_live(block_q, width_v + block_k, threads)
        or bounds.too_many_loads(tile_bytes, threads, MAX_LOADS)
        or bounds.too_large_pipeline(tile_bytes, stages, device)
        or bounds.needless_stages(stages, device)
    )


def default(shape: PagedShape, device: Device) -> Config:
    """Return a config that fits every GPU of its family, by the least shared memory that one has.

    It is what is served where no portfolio knows the architecture. The KV heads of one tile are neighbours, so that
    programs of about as many keys run together: of recorded problems of several KV heads the other order takes 1.03 to
    1.24 times as long (NVIDIA H100, 2026-11-23, ``results/nvidia_h100_80gb_hbm3/paged_prefill/grids``).
    """
    if (problem := unsupported(shape) or bounds.lacks_cache_type(shape, device)) is not None:
        raise InvalidShapeError(problem)
    width = max(bounds.padded_widths(shape.head_dim, shape.head_dim_v))
    tiles = TILES_OF_FLOAT32 if shape.dtype == "float32" else TILES_OF_16_BITS
    if KV_ITEM_BYTES[shape.kv_dtype] == 1:
        tiles = TILES_OF_BYTES
    compiled = compiled_tiles.compiled_tile(tiles, width, device) if width <= MAX_COMPILED_WIDTH else None
    block_q, block_k, warps, stages = compiled or _usual_tile(shape, width, device)
    block_q = min(block_q, bounds.padded_length(shape.batch * shape.seq_q * shape.group))
    return Config(
        BLOCK_Q=block_q,
        SMALL_Q=16 if block_q > 16 and shape.batch > 1 else 0,
        BLOCK_K=min(block_k, bounds.padded_length(shape.max_context)),
        order="tile",
        num_warps=min(warps, block_q // ROWS_PER_WARP),
        num_stages=stages,
        **bounds.usual_wave_hints(device),
    )


def _usual_tile(shape: PagedShape, width: int, device: Device) -> compiled_tiles.Tile:
    """Return the tile where recordings ship, and of heads wider than any tile is chosen for elsewhere.

    On Hopper that of wide heads with narrower values has as many keys as shared memory holds three tiles of.
    """
    item_bytes = ITEM_BYTES[shape.dtype]
    recorded = _recorded_tile(shape, width, device) if device.has("wgmma") and item_bytes == 2 else None
    if recorded is not None:
        return recorded
    block_q, block_k = (128, 64) if width <= 128 else (128 if width <= MAX_COMPILED_WIDTH else 32, 32)
    if item_bytes == 4:  # of which an element takes more registers: small tiles, or they spill
        block_q, block_k = 32, 16
    warps = 4 if block_q * width <= 128 * 64 and item_bytes == 2 else 8
    # Beside the tiles in flight lie the queries. Instructions that read a tile where it lies (wgmma) hold one buffer
    # a stage, others one less.
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    is_large = device.shared_memory_bytes >= bounds.LARGE_SHARED_MEMORY
    if device.has("wgmma") and item_bytes == 2 and width_v < width_k == MAX_COMPILED_WIDTH:
        block_k *= 2
    rows = min(block_q, bounds.padded_length(shape.batch * shape.seq_q * shape.group))
    keys = min(block_k, bounds.padded_length(shape.max_context))
    room = device.shared_memory_bytes - rows * width_k * item_bytes
    buffers = room // (keys * (width_k + width_v) * item_bytes)
    stages = max(1, min(3, buffers) if is_large else min(2, buffers + 1))
    return block_q, block_k, warps, stages if device.has("async_copies") else 1


def _recorded_tile(shape: PagedShape, width: int, device: Device) -> compiled_tiles.Tile | None:
    """Return the tile that recordings on Hopper chose over the usual one, or None.

    In a narrow window a group's rows see few keys, of which short blocks waste least: 0.73 times the usual tile's time.
    Heads of 128 over caches of 16 bits: half the rows, 0.84 to 1.02 times; twice the keys of long contexts, 0.87 and
    0.90 times, and of so few tiles that each multiprocessor has one, 0.69 times, recorded over 2,048 keys. Over e4m3,
    heads of 96 and 128: twice the keys, 0.84 to 0.94 times. What these spill lies outside the steady loops (NVIDIA H200
    and H100, 2026-11-23 to 27; ``python -m benchmarks.portfolios --list``).
    """
    if width <= 64:
        is_narrow = shape.window is not None and shape.window <= bounds.NARROW_WINDOW and shape.group > 1
        return (64, 16, 4, 3) if is_narrow else None
    has_few = shape.batch * shape.kv_heads * math.ceil(shape.seq_q * shape.group / 64) <= device.sm_count
    if width <= 128 and shape.kv_dtype == "float8_e4m3fn":
        return (64, 64, 4, 3) if has_few else (128, 128, 8, 3)
    is_wide = 96 < max(shape.head_dim, shape.head_dim_v) <= 128
    if not is_wide or KV_ITEM_BYTES[shape.kv_dtype] != 2:
        return None
    if has_few:
        return (64, 128, 4, 3)
    seen = min(shape.mean_context, shape.window or shape.mean_context)
    return (128, 128, 8, 3) if seen > LONG_CONTEXT else (64, 64, 4, 3)


def heuristics(shape: PagedShape, device: Device) -> tuple[Config, ...]:
    """Return the fixed tile of vLLM's unified attention kernel: a row for each query head, at least 16, of 32 keys.

    Its neighbouring programs are tiles of one KV head. Warps and stages are Triton's defaults.
    https://github.com/vllm-project/vllm/blob/001ceb3e98e7a19ebe33f542a368fa73bf6c76ad/vllm/attention/ops/triton_unified_attention.py
    """
    config = Config(
        BLOCK_Q=bounds.padded_length(shape.group),
        SMALL_Q=0,
        BLOCK_K=32,
        order="head",
        num_warps=4,
        num_stages=3,
        **bounds.usual_wave_hints(device),
    )
    return (config,)


def hints(config: Config, shape: PagedShape, device: Device) -> tuple[float, ...]:
    """Estimate what the time depends on smoothly: log2 of the live values a thread, of a warp's rows, of the shared
    memory of a block, of the warps that an SM holds at once, and of the tiles for each block of the device."""
    of_block = bounds.estimates(config, shape, device, other_registers=ADDRESS_REGISTERS)
    resident = of_block[-1] / config.integer("num_warps")
    tiles = shape.batch * shape.kv_heads * -(-shape.seq_q * shape.group // config.integer("BLOCK_Q"))
    return tuple(math.log2(value) for value in (*of_block, tiles / resident / device.sm_count))


IMPLEMENTATION: Final = Implementation(
    name="triton",
    operation="paged_prefill",
    space=Space(PARAMETERS, reject, default, hints, heuristics=heuristics, default_basis=compiled_tiles.default_basis),
    kernel="autotune.kernels.paged_prefill.triton:KERNEL",
    supports=lambda shape, device: unsupported(shape) or bounds.lacks_cache_type(shape, device),
    batch_invariant=lambda config, shape: Config({**config, "SMALL_Q": 0}),  # or short tiles are computed otherwise
    sources=(
        *kernel_files("paged_prefill/triton", "forward", "quantized", "launch"),
        *kernel_files("paged_decode/triton", "fold", "packing", "queries"),  # of caches of one byte an element
        *kernel_files("paged_cache", "layout"),
        *SHARED,
    ),
    entry=("launch",),
)
