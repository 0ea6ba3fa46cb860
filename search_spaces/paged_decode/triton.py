"""The space of paged decode in Triton: parameters, validity and default."""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import KV_ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.rounding import power_of_two
from autotune.search_spaces import bounds, compiled_tiles
from autotune.search_spaces.paged_decode.decode_default import preferred
from autotune.search_spaces.paged_decode.decode_merging import (
    MAX_SPLITS_LAST,
    MIN_SPLITS_HALF,
    PROGRAMS_PER_SM,
    SPLITS,
)
from autotune.search_spaces.paged_decode.decode_ranking import first_valid, is_ranked
from autotune.search_spaces.paged_decode.decode_sizes import WIDE, is_wide
from autotune.search_spaces.paged_decode.decode_work import idle_work, lanes
from autotune.search_spaces.paged_decode.operation import unsupported, why_latent
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import PagedShape
from autotune.space import Config, Parameter, Space

PARAMETERS: Final = (
    # split: programs take equal shares of each sequence; flat: equal shares of the list of all sequences' tiles.
    Parameter("schedule", ("split", "flat")),
    Parameter("BLOCK_ROWS", (16, 32, 64)),  # query heads of a KV head, times queries, in one tile
    Parameter("HEADS", (1, 2, 4, 8, 16)),  # KV heads in one tile
    Parameter("BLOCK_K", (16, 32, 64, 128, 256)),  # keys in one tile, of all its heads together
    Parameter("NUM_SPLITS", SPLITS, only=("schedule", "split")),
    Parameter("PROGRAMS_PER_SM", PROGRAMS_PER_SM, only=("schedule", "flat")),
    # Who merges partial results, a second kernel or who finishes last, and their type; of flat the former, and float32.
    Parameter("COMBINE", ("kernel", "last"), only=("schedule", "split")),
    Parameter("PARTIALS", ("float32", "float16", "bfloat16"), only=("schedule", "split")),
    Parameter("num_warps", (1, 2, 4, 8)),
    Parameter("num_stages", (1, 2, 3, 4, 6)),
    *bounds.WAVE_HINTS,
)

WARP_COLUMNS: Final = 8  # keys that a matrix instruction of one warp takes

# 16-byte loads of a tile of keys and one of values, whose addresses a thread holds at once.
MAX_LOADS: Final = 32

USUAL_SPLITS: Final = 8  # of batch-invariant picks that would not be split
MERGED_AT_ONCE: Final = 4096  # numbers of a row's partial results, of many rows: ``COMBINED_OF_MANY`` of the launch

LOAD_REGISTERS: Final = 3  # of one load in flight: 64 bits of address, and its mask; typical of compiled configs
OTHER_REGISTERS: Final = 40

VLLM_BLOCKS, VLLM_SEGMENTS = 128, 16  # see ``heuristics``


def reject(config: Config, shape: PagedShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None.

    In the order of the parameters, as far as that goes: ``Space.configs`` then passes over more.
    """
    reason = why_unsupported(shape, device) or _bad_tile(config, shape) or _needless_partials(config, shape)
    if reason is not None:
        return reason
    if (reason := idle_work(config, shape, device)) is not None:
        return reason
    rows, block_k, warps = (config.integer(name) for name in ("BLOCK_ROWS", "BLOCK_K", "num_warps"))
    if block_k < WARP_COLUMNS * warps and not is_wide(shape):  # wide heads need the registers
        return f"BLOCK_K={block_k} gives some of num_warps={warps} no column of {WARP_COLUMNS} keys"
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    threads = warps * device.warp_size
    tile_bytes = block_k * (width_k + width_v) * KV_ITEM_BYTES[shape.kv_dtype]
    too_much = bounds.too_many_live(rows, width_v + block_k, threads)
    too_much = too_much or bounds.too_many_loads(tile_bytes, threads, MAX_LOADS)
    if too_much is not None:
        return too_much
    stages = config.integer("num_stages")
    if stages == 1 and device.has("async_copies"):
        return "num_stages=1 has no load in flight while a tile is computed"
    return bounds.too_large_pipeline(tile_bytes, stages, device) or bounds.needless_stages(stages, device)


def why_unsupported(shape: PagedShape, device: Device) -> str | None:
    """Return the reason why this does not compute a shape on a device, or None."""
    return unsupported(shape) or why_latent(shape) or bounds.lacks_cache_type(shape, device)


def _bad_tile(config: Config, shape: PagedShape) -> str | None:
    """Return why the heads, rows and keys of a tile do not fit each other or the shape, or None."""
    rows, heads = config.integer("BLOCK_ROWS"), config.integer("HEADS")
    needed = heads * shape.group * shape.seq_q
    if shape.kv_heads % heads:
        return f"HEADS={heads} does not divide the {shape.kv_heads} KV heads"
    if heads > 1 and needed > bounds.MIN_BLOCK:
        return f"HEADS={heads} has {needed} rows, more than the {bounds.MIN_BLOCK} that a tile has anyhow"
    if rows > bounds.padded_length(needed):
        return f"BLOCK_ROWS={rows} is more than the padded {needed} rows of HEADS={heads}"
    block_k = config.integer("BLOCK_K")
    if block_k < bounds.MIN_BLOCK_K and not is_wide(shape):
        return f"BLOCK_K={block_k} is shorter than {bounds.MIN_BLOCK_K}, which only heads wider than {WIDE} make up for"
    if block_k > max(bounds.MIN_BLOCK_K, heads * power_of_two(shape.max_context)):
        return f"BLOCK_K={block_k} is longer than the padded context of {shape.max_context} for HEADS={heads}"
    return None


def _needless_partials(config: Config, shape: PagedShape) -> str | None:
    """Return why partial results of this type, or merged so, make no sense, or None."""
    if config["schedule"] == "flat":
        return None
    partials, combine, splits = config["PARTIALS"], config["COMBINE"], config.integer("NUM_SPLITS")
    if partials not in ("float32", shape.dtype):
        return f"PARTIALS={partials} is neither float32 nor the dtype, {shape.dtype}"
    if splits == 1 and (partials, combine) != ("float32", "kernel"):
        return f"PARTIALS={partials} and COMBINE={combine} change nothing: NUM_SPLITS=1 leaves no partial results"
    if combine == "last" and splits > MAX_SPLITS_LAST:
        return f"COMBINE=last: one program would merge NUM_SPLITS={splits} partial results, more than {MAX_SPLITS_LAST}"
    if partials != "float32" and splits < MIN_SPLITS_HALF:
        return f"PARTIALS={partials} of NUM_SPLITS={splits}, fewer than {MIN_SPLITS_HALF}, are too few to matter"
    return None


def default(shape: PagedShape, device: Device) -> Config:
    """Return a config that fits every GPU of its family, by the least shared memory that one has.

    See ``decode_ranking`` for how it is chosen where trials are recorded, ``decode_default`` for how elsewhere.
    """
    if (problem := why_unsupported(shape, device)) is not None:
        raise InvalidShapeError(problem)
    if is_ranked(shape, device) and (config := first_valid(shape, device, reject)) is not None:
        return config
    *others, last = preferred(shape, device)
    return next((config for config in others if reject(config, shape, device) is None), last)


def default_basis(device: Device) -> str:
    """Return that the default was compiled and not timed, where no recording ships; empty elsewhere."""
    basis = compiled_tiles.default_basis(device)
    return basis and f"a formula over shared memory, {basis.replace('chosen', 'checked')}"


def heuristics(shape: PagedShape, device: Device) -> tuple[Config, ...]:
    """Return the fixed tiles of vLLM's unified attention kernel: a row for each query head, at least 16, of 32 keys.

    Sequences are split in 16 unless their blocks of queries, counted as there, are more than 128; its tiles of 16 keys
    for that case are shorter than any here. Warps and stages are Triton's defaults.
    https://github.com/vllm-project/vllm/blob/001ceb3e98e7a19ebe33f542a368fa73bf6c76ad/vllm/attention/ops/triton_unified_attention.py
    """
    rows = bounds.padded_length(shape.group)
    blocks = shape.batch * shape.seq_q // (rows // shape.group) + shape.batch
    splits = 1 if shape.seq_q > 1 or blocks * shape.kv_heads > VLLM_BLOCKS else VLLM_SEGMENTS
    config = Config(
        schedule="split",
        BLOCK_ROWS=rows,
        HEADS=1,
        BLOCK_K=32,
        NUM_SPLITS=splits,
        PROGRAMS_PER_SM=None,
        COMBINE="kernel",
        PARTIALS="float32",
        num_warps=4,
        num_stages=3,
        **bounds.usual_wave_hints(device),
    )
    return (config,)


def hints(config: Config, shape: PagedShape, device: Device) -> tuple[float, ...]:
    """Estimate what the time depends on smoothly: log2 of the live values a thread, of the bytes that an SM has in
    flight, of the blocks that it holds at once, and of the programs for each of those."""
    rows, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_ROWS", "BLOCK_K", "num_warps", "num_stages")
    )
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    threads = warps * device.warp_size
    tile_bytes = block_k * (width_k + width_v) * KV_ITEM_BYTES[shape.kv_dtype]
    live = rows * (width_v + block_k) / threads
    held = max(1, stages - 1) * tile_bytes
    registers = live + LOAD_REGISTERS * tile_bytes / 16 / threads + OTHER_REGISTERS
    resident = bounds.blocks_at_once(registers, threads, held, device)
    if config["schedule"] == "flat":
        programs = config.integer("PROGRAMS_PER_SM") * device.sm_count
    else:
        programs = config.integer("NUM_SPLITS") * shape.batch * lanes(config, shape)
    return tuple(math.log2(value) for value in (live, held * resident, resident, programs / resident / device.sm_count))


def batch_invariant(config: Config, shape: PagedShape) -> Config:
    """Return a config whose shares are of a sequence's own tiles, and are merged in one order in every batch.

    A second kernel merges more of them at once where a batch has few rows, unless all are merged at once anyhow.
    """
    most = MERGED_AT_ONCE // bounds.padded_widths(shape.head_dim, shape.head_dim_v)[1]
    fewer = max(each for each in SPLITS if power_of_two(each) <= most)
    if config["schedule"] == "flat":
        shares = {"NUM_SPLITS": min(USUAL_SPLITS, fewer), "PROGRAMS_PER_SM": None}
        return Config({**config, **shares, "schedule": "split", "COMBINE": "kernel", "PARTIALS": "float32"})
    if config["COMBINE"] == "last" or config.integer("NUM_SPLITS") <= fewer:
        return config
    return Config({**config, "NUM_SPLITS": fewer})


_FILES: Final = ("forward", "combine", "fold", "queries", "packing", "tile_list", "counters", "launch")

IMPLEMENTATION: Final = Implementation(
    name="triton",
    operation="paged_decode",
    space=Space(
        *(PARAMETERS, reject, default, hints),
        heuristics=heuristics,
        default_basis=default_basis,
        is_learned=is_ranked,
    ),
    kernel="autotune.kernels.paged_decode.triton:KERNEL",
    supports=why_unsupported,
    batch_invariant=batch_invariant,
    sources=(
        *kernel_files("paged_decode/triton", *_FILES),
        *kernel_files("paged_cache", "layout"),
        *SHARED,
    ),
    entry=("launch",),
)
