"""The space of flash attention over split keys in Triton: parameters, validity and default."""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.rounding import power_of_two
from autotune.search_spaces import bounds, compiled_tiles
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space

PREFERRED_SPLITS: Final = 4  # fewer gain little over merging them
SPLITS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
PARAMETERS: Final = (
    Parameter("BLOCK_Q", (16, 32, 64, 128)),  # rows of one tile: the query heads of a KV head, times queries
    Parameter("BLOCK_K", (16, 32, 64, 128)),
    Parameter("NUM_SPLITS", SPLITS),  # shares of a sequence's keys
    Parameter("PARTIALS", ("float32", "float16", "bfloat16")),  # the type of their results
    Parameter("num_warps", (2, 4, 8)),
    Parameter("num_stages", (1, 2, 3, 4, 6)),
    Parameter("loads", ("pointer", "descriptor")),  # of keys and values
    *bounds.WAVE_HINTS,
)

MOST_QUERIES: Final = 64  # of more, blocks of queries make programs enough
WIDE_BYTES: Final = 256  # of a row of keys: of wider ones a tile fills shared memory and registers sooner
WARP_ROWS, WARP_COLUMNS = 16, 8  # that a matrix instruction of one warp takes
GROUP_ROWS, GROUP_WARPS = 64, 4  # and one of a warp group
MAX_LOADS: Final = 32  # of 16 bytes a tile of keys and one of values, whose addresses a thread holds at once
MIN_PROGRAMS, MAX_PROGRAMS = 0.5, 4  # for each SM: fewer leave SMs idle, more only begin more often
MIN_SPLITS_HALF: Final = 8  # below, partial results are too few for their type to matter
USUAL_PROGRAMS, USUAL_TILES = 2, 4  # programs an SM, and tiles of each, which fill a pipeline
USUAL_LIVE: Final = 64 * (128 + 64)  # values of an accumulator and of scores that four warps hold
TILE_BYTES: Final = 16384  # of the keys of a tile, and as many of its values
OTHER_REGISTERS: Final = 40  # beside the live values: pointers, masks, row maxima

# Of FlashAttention-2, see ``heuristics``.
FA2_ROWS, FA2_MOST_SPLITS, FA2_FILLED, FA2_EFFICIENCY = 64, 128, 0.8, 0.85


def supports(shape: AttentionShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    title = "flash_attention/triton_split_keys"
    if (problem := bounds.quantized(title, shape) or bounds.operands(title, shape)) is not None:
        return problem
    if shape.seq_q > MOST_QUERIES:
        return f"flash_attention/triton_split_keys computes at most {MOST_QUERIES} queries, not seq_q={shape.seq_q}"
    return None


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    if (problem := supports(shape, device)) is not None:
        return problem
    block_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    threads = warps * device.warp_size
    tile_bytes = block_k * (width_k + width_v) * ITEM_BYTES[shape.dtype]
    return (
        _bad_tile(config, shape)
        or bounds.too_many_live(block_q, width_v + block_k, threads)
        or bounds.too_many_loads(tile_bytes, threads, MAX_LOADS)
        or bounds.too_large_pipeline(tile_bytes, stages, device)
        or bounds.needless_stages(stages, device)
        or _idle_loads(config, device)
        or _needless_partials(config, shape)
        or _idle_work(config, shape, device)
    )


def _bad_tile(config: Config, shape: AttentionShape) -> str | None:
    """Return why the rows, keys and warps of a tile do not fit each other or the shape, or None."""
    block_q, block_k, warps = (config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps"))
    rows = shape.group * shape.seq_q
    times, fewest = -(-rows // block_q), -(-rows // _most_rows(shape))
    most_warps = max(GROUP_WARPS, block_q // WARP_ROWS, 2 * GROUP_WARPS * (block_q // GROUP_ROWS))
    if (reason := bounds.too_long("BLOCK_Q", block_q, rows, f"{rows} rows")) is not None:
        return reason
    if times > 2 * fewest:
        return f"BLOCK_Q={block_q} reads the keys {times} times for {rows} rows, more than twice the {fewest} it takes"
    if warps > most_warps:
        return f"num_warps={warps} is more than the {most_warps} that BLOCK_Q={block_q} has rows for"
    if block_q >= GROUP_ROWS and warps < GROUP_WARPS:
        return f"num_warps={warps} is no group of {GROUP_WARPS}, which BLOCK_Q={block_q} has rows for"
    if block_k < WARP_COLUMNS * warps and block_q < WARP_ROWS * warps and not _is_wide(shape):  # these need registers
        return f"BLOCK_K={block_k} gives some of num_warps={warps} no column of {WARP_COLUMNS} keys"
    if block_k < bounds.MIN_BLOCK_K and not _is_wide(shape):
        return (
            f"BLOCK_K={block_k} is shorter than {bounds.MIN_BLOCK_K}, "
            f"which only rows of more than {WIDE_BYTES} bytes make up for"
        )
    return bounds.too_long("BLOCK_K", block_k, max(bounds.MIN_BLOCK_K, shape.seq_kv), f"length of {shape.seq_kv}")


def _idle_loads(config: Config, device: Device) -> str | None:
    """Return why loads of this kind or depth do not pay on a device, or None."""
    if config["num_stages"] == 1 and device.has("async_copies"):
        return "num_stages=1 has no load in flight while a tile is computed"
    if config["loads"] == "descriptor" and not device.has("tensor_maps"):
        return f"loads=descriptor needs tensor maps, which {device.arch} does not have"
    return None


def _needless_partials(config: Config, shape: AttentionShape) -> str | None:
    """Return why partial results of this type make no sense, or None."""
    partials, splits = config["PARTIALS"], config.integer("NUM_SPLITS")
    if partials not in ("float32", shape.dtype):
        return f"PARTIALS={partials} is neither float32 nor the dtype, {shape.dtype}"
    if partials != "float32" and splits < MIN_SPLITS_HALF:
        return f"PARTIALS={partials} of NUM_SPLITS={splits}, fewer than {MIN_SPLITS_HALF}, are too few to matter"
    return None


def _idle_work(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why the keys do not suffice for so many splits, or the splits not for the SMs, or None."""
    splits, tiles = config.integer("NUM_SPLITS"), _tiles(config.integer("BLOCK_K"), shape)
    programs = splits * _lanes(config.integer("BLOCK_Q"), shape)
    if splits > max(1, tiles // 2):
        return f"NUM_SPLITS={splits} of {tiles} tiles: a share of one has nothing to load while it is computed"
    if splits > 1 and programs > MAX_PROGRAMS * device.sm_count:
        return (
            f"NUM_SPLITS={splits} makes {programs} programs, more than {MAX_PROGRAMS} for each of {device.sm_count} SMs"
        )
    if programs < MIN_PROGRAMS * device.sm_count and 2 * USUAL_TILES * splits < tiles and splits < SPLITS[-1]:
        return f"NUM_SPLITS={splits} makes {programs} programs, which leave most of {device.sm_count} SMs idle"
    return None


def keys_seen(shape: AttentionShape) -> int:
    """Count the keys that some query sees: the first query's window begins them, the last query sees the last one."""
    return shape.seq_kv if shape.window is None else min(shape.seq_kv, shape.seq_q + shape.window - 1)


def _tiles(block_k: int, shape: AttentionShape) -> int:
    return -(-keys_seen(shape) // block_k)


def _lanes(block_q: int, shape: AttentionShape) -> int:
    """Count the programs that each share of the keys has: sequences and KV heads, times the blocks of their rows."""
    return shape.batch * shape.kv_heads * -(-shape.group * shape.seq_q // block_q)


def _most_rows(shape: AttentionShape) -> int:
    """Return the rows of a tile of which every device has the registers; float32 is three numbers of bfloat16."""
    if shape.dtype == "float32":
        return 16 if _is_wide(shape) else 32
    return 64 if _is_wide(shape) else 128


def _is_wide(shape: AttentionShape) -> bool:
    return max(bounds.padded_widths(shape.head_dim, shape.head_dim_v)) * ITEM_BYTES[shape.dtype] > WIDE_BYTES


def default(shape: AttentionShape, device: Device) -> Config:
    """Return a config that fits every GPU of its family, by the least shared memory that one has.

    As many splits as give each SM two programs, of tiles enough to fill a pipeline. Loads are by descriptor where there
    are any, since they take fewer registers: 145 a thread instead of 234 of 64 rows and 64 keys on sm_90 (heads of 128,
    bfloat16; Triton 3.6.0, 2026-11-24, ``python -m tests.kernels.flash_attention.split_sample sm_90``).
    """
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    item_bytes = ITEM_BYTES[shape.dtype]
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    width = max(width_k, width_v)
    is_small = device.shared_memory_bytes <= compiled_tiles.SMALL_SHARED_MEMORY
    most_bytes = TILE_BYTES // 2 if is_small and device.has("async_copies") else TILE_BYTES
    block_k = min(128, most_bytes // width // item_bytes, power_of_two(shape.seq_kv))
    block_k = max(bounds.MIN_BLOCK if _is_wide(shape) else bounds.MIN_BLOCK_K, block_k)
    block_q = min(_most_rows(shape), bounds.padded_length(shape.group * shape.seq_q))
    # Two programs an SM. Beside the tiles in flight lie the queries.
    room = device.shared_memory_bytes // 2 - block_q * width_k * item_bytes
    stages = room // (block_k * (width_k + width_v) * item_bytes) + 1
    config = Config(
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        NUM_SPLITS=1,
        PARTIALS="float32",
        num_warps=4 if block_q < GROUP_ROWS or block_q * (width_v + block_k) <= USUAL_LIVE else 8,
        num_stages=max(2, min(3, stages)) if device.has("async_copies") else 1,
        loads="descriptor" if device.has("tensor_maps") else "pointer",
        **bounds.usual_wave_hints(device),
    )
    wanted = USUAL_PROGRAMS * device.sm_count // _lanes(block_q, shape)
    return _with_splits(config, min(wanted, _tiles(block_k, shape) // USUAL_TILES))


def is_preferred(shape: AttentionShape, device: Device) -> bool:
    """Return True where the default makes so many splits that others would leave most multiprocessors without work.

    Searched, it took 0.98 times as long as cuDNN for a query on 32,768 keys of 8 KV heads, 0.32 times as the fastest of
    SDPA for 16, and 0.68 times for 64 (NVIDIA H200, 2026-11-28; ``python -m benchmarks.short_queries``).
    """
    return supports(shape, device) is None and default(shape, device).integer("NUM_SPLITS") >= PREFERRED_SPLITS


def default_basis(device: Device) -> str:
    """Return that the default was compiled and not timed, which it is of no device yet."""
    return "a formula over shared memory, checked by compiled resources"


def _with_splits(config: Config, wanted: int) -> Config:
    """Return a config with as many splits as are wanted, or the next fewer that the space has."""
    return Config({**config, "NUM_SPLITS": max(each for each in SPLITS if each <= max(1, wanted))})


def heuristics(shape: AttentionShape, device: Device) -> tuple[Config, ...]:
    """Return the tile and the splits of FlashAttention-2's kernel for split keys; none of float32, which it lacks.

    A tile has 64 rows, or as many as there are here, 256, 128 or 64 keys by the head dim (of 256, the 128 that the
    space has), and four warps; the next tile is copied while one is computed, which two stages do. Splits are the
    fewest that reach 0.85 of the best efficiency of waves, of two programs an SM
    (``set_params_splitkv`` and ``num_splits_heuristic`` in
    https://github.com/Dao-AILab/flash-attention/blob/00979f57acf503b0b080ff08ada0007080074649/csrc/flash_attn/flash_api.cpp).
    Programs are counted as they are here, where query heads share tiles at any number of queries.
    """
    if shape.dtype == "float32" or supports(shape, device) is not None:
        return ()
    block_q = min(FA2_ROWS, bounds.padded_length(shape.group * shape.seq_q))
    width = max(shape.head_dim, shape.head_dim_v)
    columns = 256 if width <= 64 else 128 if width <= 128 else 64
    config = Config(
        BLOCK_Q=block_q,
        BLOCK_K=min(128, columns),
        NUM_SPLITS=1,
        PARTIALS="float32",
        num_warps=4,
        num_stages=2,
        loads="pointer",
        **bounds.usual_wave_hints(device),
    )
    splits = splits_of_flash_attention_2(_lanes(block_q, shape), 2 * device.sm_count, -(-shape.seq_kv // columns))
    return (_with_splits(config, splits),)


def splits_of_flash_attention_2(lanes: int, places: int, tiles: int) -> int:
    """Return the splits of ``num_splits_heuristic``, of programs before splitting, places for programs, and tiles."""
    if lanes >= FA2_FILLED * places:
        return 1
    # The others leave the last shares empty, and are as fast as fewer splits.
    most = min(FA2_MOST_SPLITS, places, tiles)
    distinct = [each for each in range(1, most + 1) if each == 1 or -(-tiles // each) != -(-tiles // (each - 1))]
    efficiency = {each: each * lanes / places / math.ceil(each * lanes / places) for each in distinct}
    return next(each for each in distinct if efficiency[each] >= FA2_EFFICIENCY * max(efficiency.values()))


def hints(config: Config, shape: AttentionShape, device: Device) -> tuple[float, ...]:
    """Estimate what the time depends on smoothly: log2 of the live values a thread, of the bytes that an SM has in
    flight, of the blocks that it holds at once, and of the programs for each of those."""
    block_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    threads = warps * device.warp_size
    live = block_q * (width_v + block_k) / threads
    held = max(1, stages - 1) * block_k * (width_k + width_v) * ITEM_BYTES[shape.dtype]
    queries = block_q * width_k * ITEM_BYTES[shape.dtype]
    resident = bounds.blocks_at_once(live + OTHER_REGISTERS, threads, held + queries, device)
    programs = config.integer("NUM_SPLITS") * _lanes(block_q, shape)
    return tuple(math.log2(value) for value in (live, held * resident, resident, programs / resident / device.sm_count))


IMPLEMENTATION: Final = Implementation(
    name="triton_split_keys",
    operation="flash_attention",
    space=Space(
        *(PARAMETERS, reject, default, hints),
        heuristics=heuristics,
        default_basis=default_basis,
        is_preferred=is_preferred,
    ),
    kernel="autotune.kernels.flash_attention.triton_split_keys:KERNEL",
    sources=(*kernel_files("flash_attention/triton_split_keys", "forward", "launch"), *SHARED),
    entry=("launch",),
    supports=supports,
)
