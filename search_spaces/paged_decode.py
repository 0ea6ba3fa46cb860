"""The space of the paged decode kernel: parameters, validity, default and cost."""

import math
from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.errors import InvalidShapeError
from autotune.operation import Cost, Operation
from autotune.search_spaces.flash_attention import padded_widths
from autotune.shape import ITEM_BYTES, KV_ITEM_BYTES, PagedShape
from autotune.space import Config, Parameter, Space, Value

PARAMETERS: Final = (
    # split: programs take equal shares of each sequence; flat: equal shares of the list of all sequences' tiles.
    Parameter("schedule", ("split", "flat")),
    Parameter("BLOCK_ROWS", (16, 32, 64)),  # query heads of a KV head, times queries, in one tile
    Parameter("HEADS", (1, 2, 4, 8, 16)),  # KV heads in one tile
    Parameter("BLOCK_K", (16, 32, 64, 128, 256)),  # keys in one tile, of all its heads together
    Parameter("NUM_SPLITS", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128), only=("schedule", "split")),
    Parameter("PROGRAMS_PER_SM", (1, 2, 3, 4, 6, 8), only=("schedule", "flat")),
    # Who merges partial results, a second kernel or who finishes last, and their type; of flat the former, and float32.
    Parameter("COMBINE", ("kernel", "last"), only=("schedule", "split")),
    Parameter("PARTIALS", ("float32", "float16", "bfloat16"), only=("schedule", "split")),
    Parameter("num_warps", (1, 2, 4, 8)),
    Parameter("num_stages", (1, 2, 3, 4, 6)),
    # AMD only, see flash_attention.
    Parameter("waves_per_eu", (0, 2), backend="hip"),
    Parameter("matrix_instr_nonkdim", (16, 32), backend="hip"),
    Parameter("kpack", (1, 2), backend="hip"),
)

MAX_QUERIES: Final = 8  # of a sequence in one step: speculative decoding asks for a few
MIN_BLOCK_ROWS: Final = 16  # of matrix instructions: fewer rows are padded
MAX_BLOCK_ROWS: Final = 64
MIN_BLOCK_K: Final = 32  # shorter tiles spend their time on beginning and ending
WIDE: Final = 256  # of wider heads a tile fills shared memory and registers sooner
WARP_COLUMNS: Final = 8  # keys that a matrix instruction of one warp takes

MAX_LIVE_VALUES: Final = 256  # fp32 values of accumulator and scores: a thread has 255 registers
# 16-byte loads of a tile of keys and one of values, whose addresses a thread holds at once.
MAX_LOADS: Final = 32
MAX_SPLITS_LAST: Final = 8  # that one program merges: with 16 and more it took longer than a second kernel
MIN_SPLITS_HALF: Final = 8  # below, partial results are too few for their type to matter
# Programs for each SM: fewer leave SMs idle, more only begin more often (NVIDIA H200, 2026-11-21, batch 1 to 128).
MIN_PROGRAMS, MAX_PROGRAMS = 0.5, 16
USUAL_PROGRAMS, USUAL_TILES = 2, 4  # programs an SM, and tiles of each: where splitting further no longer paid

SM_REGISTERS: Final = 65536
MAX_REGISTERS: Final = 255  # a thread
LOAD_REGISTERS: Final = 3  # of one load in flight: 64 bits of address, and its mask; typical of compiled configs
OTHER_REGISTERS: Final = 40

PARTIAL_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}


def unsupported(shape: PagedShape) -> str | None:
    """What of a shape the kernel cannot compute, or None."""
    if shape.seq_q > MAX_QUERIES:
        return f"seq_q={shape.seq_q} is not supported by paged_decode; expected 1 to {MAX_QUERIES}"
    allowed = [shape.dtype]
    if shape.dtype != "float32":
        allowed += [name for name, size in KV_ITEM_BYTES.items() if size == 1]
    if shape.kv_dtype not in allowed:
        return (
            f"kv_dtype={shape.kv_dtype!r} is not supported by paged_decode with dtype={shape.dtype!r}; "
            f"expected {', '.join(allowed)}"
        )
    return None


def reject(config: Config, shape: PagedShape, device: Device) -> str | None:
    """Why a config cannot pay for this shape on this device, by bounds that need no compiler; None if it may."""
    rows, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_ROWS", "BLOCK_K", "num_warps", "num_stages")
    )
    if (problem := unsupported(shape) or _lacks_type(shape, device)) is not None:
        return problem
    if (reason := _bad_tile(config, shape)) is not None:
        return reason
    width_k, width_v = padded_widths(shape.head_dim, shape.head_dim_v)
    threads = warps * device.warp_size
    live = rows * (width_v + block_k) // threads
    if live > MAX_LIVE_VALUES:
        return f"{live} fp32 values a thread stay live, more than {MAX_LIVE_VALUES} registers hold"
    tile_bytes = block_k * (width_k + width_v) * KV_ITEM_BYTES[shape.kv_dtype]
    loads = tile_bytes // 16 // threads
    if loads > MAX_LOADS:
        return f"a thread has {loads} loads of 16 bytes a tile, more than {MAX_LOADS} addresses stay in registers"
    held = max(1, stages - 1) * tile_bytes
    if held > device.shared_memory_bytes:
        return f"K and V tiles take {held} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    if device.backend == "hip" and stages > 2:
        return "num_stages above 2 does not pay on AMD: there is no asynchronous copy to hide"
    if device.backend == "cuda" and stages == 1:
        return "num_stages=1 has no load in flight while a tile is computed"
    return _needless_partials(config, shape) or _idle_work(config, shape, device)


def _lacks_type(shape: PagedShape, device: Device) -> str | None:
    """Why a device cannot convert the cache's type; None if it can."""
    if shape.kv_dtype == "float8_e4m3fn" and device.backend == "cuda" and int(device.arch[3:]) < 89:
        return f"kv_dtype='float8_e4m3fn' needs sm_89 or newer, this is {device.arch}; float8_e5m2 and int8 do not"
    return None


def _bad_tile(config: Config, shape: PagedShape) -> str | None:
    """Why the heads, rows and keys of a tile do not fit each other or the shape; None if they do."""
    rows, heads, block_k, warps = (config.integer(name) for name in ("BLOCK_ROWS", "HEADS", "BLOCK_K", "num_warps"))
    needed = heads * shape.group * shape.seq_q
    if shape.kv_heads % heads:
        return f"HEADS={heads} does not divide the {shape.kv_heads} KV heads"
    if heads > 1 and needed > MIN_BLOCK_ROWS:
        return f"HEADS={heads} has {needed} rows, more than the {MIN_BLOCK_ROWS} that a tile has anyhow"
    if rows > max(MIN_BLOCK_ROWS, power_of_two(needed)):
        return f"BLOCK_ROWS={rows} is more than the padded {needed} rows of HEADS={heads}"
    if block_k < WARP_COLUMNS * warps and not _is_wide(shape):  # wide heads need the registers
        return f"BLOCK_K={block_k} gives some of num_warps={warps} no column of {WARP_COLUMNS} keys"
    if block_k < MIN_BLOCK_K and not _is_wide(shape):
        return f"BLOCK_K={block_k} is shorter than {MIN_BLOCK_K}, which only heads wider than {WIDE} make up for"
    if block_k > max(MIN_BLOCK_K, heads * power_of_two(shape.max_context)):
        return f"BLOCK_K={block_k} is longer than the padded context of {shape.max_context} for HEADS={heads}"
    return None


def _needless_partials(config: Config, shape: PagedShape) -> str | None:
    """Why partial results of this type, or merged so, make no sense; None if they do."""
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


def _idle_work(config: Config, shape: PagedShape, device: Device) -> str | None:
    """Why the tiles do not suffice for more than one split, or program of an SM; None if they may."""
    tokens, lanes = max(1, config.integer("BLOCK_K") // config.integer("HEADS")), _lanes(config, shape)
    tiles = -(-shape.max_context // tokens)
    if config["schedule"] == "flat":
        programs = config.integer("PROGRAMS_PER_SM") * device.sm_count // lanes
        if config["PROGRAMS_PER_SM"] != 1 and programs > shape.batch * tiles:
            return f"{programs} programs of a KV head for at most {shape.batch * tiles} tiles"
        return None
    splits = config.integer("NUM_SPLITS")
    if splits > tiles:
        return f"NUM_SPLITS={splits} of at most {tiles} tiles"
    programs = splits * shape.batch * lanes
    if splits > 1 and programs > MAX_PROGRAMS * device.sm_count:
        return (
            f"NUM_SPLITS={splits} makes {programs} programs, more than {MAX_PROGRAMS} for each of {device.sm_count} SMs"
        )
    if programs < MIN_PROGRAMS * device.sm_count and USUAL_TILES * splits < tiles:
        return f"NUM_SPLITS={splits} makes {programs} programs, which leave most of {device.sm_count} SMs idle"
    partial_bytes = splits * shape.group * shape.seq_q * shape.head_dim_v * PARTIAL_BYTES[str(config["PARTIALS"])]
    key_bytes = shape.mean_context * (shape.head_dim + shape.head_dim_v) * KV_ITEM_BYTES[shape.kv_dtype]
    if splits > 1 and partial_bytes > key_bytes:
        return f"NUM_SPLITS={splits}: partial results of {partial_bytes} bytes for keys and values of {key_bytes} bytes"
    return None


def _is_wide(shape: PagedShape) -> bool:
    return max(shape.head_dim, shape.head_dim_v) > WIDE


def _most_rows(shape: PagedShape) -> int:
    """Rows of a tile that hold all rows of a KV head, or as many as a tile may have."""
    return min(MAX_BLOCK_ROWS, max(MIN_BLOCK_ROWS, power_of_two(shape.group * shape.seq_q)))


def _lanes(config: Config, shape: PagedShape) -> int:
    """Programs that read the same sequence: its KV heads by HEADS, times the blocks of rows of those."""
    heads = config.integer("HEADS")
    return shape.kv_heads // heads * -(-heads * shape.group * shape.seq_q // config.integer("BLOCK_ROWS"))


def default(shape: PagedShape, device: Device) -> Config:
    """A config that fits every GPU of its family: 99 KB of shared memory on NVIDIA (227 KB from sm_90), 64 KB on AMD.

    Ragged batches take the balanced list; others as many splits as give each SM two programs, of tiles enough to fill a
    pipeline. Of the 20 to 100 configs that were tried for each of twelve shapes, the fastest was this or at most 7 %
    faster (NVIDIA H200, 2026-11-21; batch 1 to 64, pages of 1 and 16, uniform and ragged, bf16, e4m3 and int8).

    Raises:
        InvalidShapeError: the kernel does not support the shape.
    """
    if (problem := unsupported(shape) or _lacks_type(shape, device)) is not None:
        raise InvalidShapeError(problem)
    width_k, width_v = padded_widths(shape.head_dim, shape.head_dim_v)
    width, item_bytes = max(width_k, width_v), KV_ITEM_BYTES[shape.kv_dtype]
    is_hip = device.backend == "hip"
    block_k = min(128, 16384 // width // item_bytes, power_of_two(shape.max_context))
    block_k = max(16 if _is_wide(shape) else MIN_BLOCK_K, block_k)
    rows = _most_rows(shape)
    # Beside the tiles in flight lie the queries and the weights of one tile.
    room = device.shared_memory_bytes - rows * (width_k + block_k) * ITEM_BYTES[shape.dtype]
    stages = room // (block_k * (width_k + width_v) * item_bytes) + 1
    heads = 2 if shape.kv_heads % 2 == 0 and 2 * shape.group * shape.seq_q <= MIN_BLOCK_ROWS else 1
    flat = Config(
        schedule="flat",
        BLOCK_ROWS=rows,
        HEADS=heads,
        BLOCK_K=block_k,
        NUM_SPLITS=None,
        PROGRAMS_PER_SM=2,
        COMBINE=None,
        PARTIALS=None,
        num_warps=4 if width <= 256 else 8,
        num_stages=1 if is_hip else max(2, min(3, stages)),
        waves_per_eu=0 if is_hip else None,
        matrix_instr_nonkdim=16 if is_hip else None,
        kpack=1 if is_hip else None,
    )
    few = Config({**flat, "PROGRAMS_PER_SM": 1})
    if shape.mean_context < shape.max_context:
        candidates = [flat, few]
    else:
        splits = _usual_splits(flat, shape, device)
        amounts: dict[str, Value] = {"NUM_SPLITS": splits, "COMBINE": "kernel", "PARTIALS": "float32"}
        split = Config({**flat, "schedule": "split", "PROGRAMS_PER_SM": None, **amounts})
        candidates = [split, flat, few]
    return next((config for config in candidates if reject(config, shape, device) is None), few)


def _usual_splits(config: Config, shape: PagedShape, device: Device) -> int:
    """Splits of a sequence for two programs an SM or nearly so, each with four tiles at least; a power of two."""
    tiles = shape.max_context * config.integer("HEADS") // config.integer("BLOCK_K")
    wanted = min(USUAL_PROGRAMS * device.sm_count // (shape.batch * _lanes(config, shape)), tiles // USUAL_TILES, 128)
    return 1 << max(0, wanted.bit_length() - 1)


def hints(config: Config, shape: PagedShape, device: Device) -> tuple[float, ...]:
    """Estimates that the time depends on smoothly: log2 of the live values a thread, of the bytes that an SM has in
    flight, of the blocks that it holds at once, and of the programs for each of those."""
    rows, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_ROWS", "BLOCK_K", "num_warps", "num_stages")
    )
    width_k, width_v = padded_widths(shape.head_dim, shape.head_dim_v)
    threads = warps * device.warp_size
    tile_bytes = block_k * (width_k + width_v) * KV_ITEM_BYTES[shape.kv_dtype]
    live = rows * (width_v + block_k) / threads
    held = max(1, stages - 1) * tile_bytes
    registers = live + LOAD_REGISTERS * tile_bytes / 16 / threads + OTHER_REGISTERS
    resident = max(
        0.5, min(device.shared_memory_bytes / held, SM_REGISTERS / (min(MAX_REGISTERS, registers) * threads))
    )
    if config["schedule"] == "flat":
        programs = config.integer("PROGRAMS_PER_SM") * device.sm_count
    else:
        programs = config.integer("NUM_SPLITS") * shape.batch * _lanes(config, shape)
    return tuple(math.log2(value) for value in (live, held * resident, resident, programs / resident / device.sm_count))


def cost(shape: PagedShape) -> Cost:
    """FLOPs of the two products over the keys that are seen; bytes of those keys and values, q and the output, once.

    Every sequence counts with ``mean_context``. 2 FLOPs a multiply-add, softmax not counted, as in ``flash_attention``.
    """
    width = shape.head_dim + shape.head_dim_v
    # Query i of the last seq_q positions sees mean_context - seq_q + i + 1 keys, of them at most the window's.
    seen = [max(0, shape.mean_context - shape.seq_q + query + 1) for query in range(shape.seq_q)]
    reach = shape.mean_context
    if shape.window is not None:
        seen = [min(keys, shape.window) for keys in seen]
        reach = min(reach, shape.window + shape.seq_q - 1)
    flops = 2 * shape.batch * shape.heads * sum(seen) * width
    keys = shape.batch * shape.kv_heads * reach * width * KV_ITEM_BYTES[shape.kv_dtype]
    queries = shape.batch * shape.heads * shape.seq_q * width * ITEM_BYTES[shape.dtype]
    return Cost(flops=flops, bytes=keys + queries)


def power_of_two(value: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (value - 1).bit_length()


_FILES: Final = (
    *("forward", "fold", "keys", "pages", "queries", "packing", "softmax", "tiles"),
    *("partials", "combine", "early", "counters", "launch"),
)
_KERNEL_FOLDERS: Final = Path(__file__).parent.parent / "kernels"

OPERATION: Final = Operation(
    name="paged_decode",
    shape_class=PagedShape,
    space=Space(PARAMETERS, reject, default, hints),
    cost=cost,
    sources=(
        *(_KERNEL_FOLDERS / "paged_decode" / f"{name}.py" for name in _FILES),
        # The helpers that the kernels share.
        _KERNEL_FOLDERS / "flash_attention" / "forward.py",
        _KERNEL_FOLDERS / "precision.py",
        Path(__file__).with_name("flash_attention.py"),
        Path(__file__),
    ),
    entry=("launch",),
    unsupported=unsupported,
)
