"""The space of the paged prefill kernel: parameters, validity, default and cost."""

import math
from collections import Counter
from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.errors import InvalidShapeError
from autotune.operation import Cost, Operation
from autotune.search_spaces.flash_attention import padded_widths, visible_pairs
from autotune.shape import ITEM_BYTES, AttentionShape, PagedShape
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
    # AMD only, see flash_attention.
    Parameter("waves_per_eu", (0, 2), backend="hip"),
    Parameter("matrix_instr_nonkdim", (16, 32), backend="hip"),
    Parameter("kpack", (1, 2), backend="hip"),
)

MAX_LIVE_VALUES: Final = 256  # fp32 values of accumulator and scores: a thread has 255 registers
# 16-byte loads of a tile of keys and one of values, whose addresses a thread holds at once.
MAX_LOADS: Final = 64
# Matrix instructions have 16 rows. Four warps may split their columns, so that each holds a part of a wide accumulator;
# more would exchange ever more partial maxima.
ROWS_PER_WARP: Final = 4

SM_REGISTERS: Final = 65536
MAX_REGISTERS: Final = 255  # a thread
ADDRESS_REGISTERS: Final = 72  # beside the live values; typical of compiled configs

LARGE_SHARED_MEMORY: Final = 227 * 1024  # bytes: sm_90 and sm_100


def unsupported(shape: PagedShape) -> str | None:
    """What of a shape the kernel cannot compute, or None."""
    if shape.kv_dtype != shape.dtype:
        return f"kv_dtype={shape.kv_dtype!r} is not supported by paged_prefill; expected that of dtype, {shape.dtype!r}"
    return None


def reject(config: Config, shape: PagedShape, device: Device) -> str | None:
    """Why a config cannot pay for this shape on this device, by bounds that need no compiler; None if it may."""
    block_q, small_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "SMALL_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    if (problem := unsupported(shape)) is not None:
        return problem
    rows = shape.batch * shape.seq_q * shape.group  # of one KV head; one sequence may have nearly all
    if block_q > max(16, _power_of_two(rows)):
        return f"BLOCK_Q={block_q} is longer than the padded {rows} rows of a KV head"
    if block_k > max(16, _power_of_two(shape.max_context)):
        return f"BLOCK_K={block_k} is longer than the padded context of {shape.max_context}"
    if small_q >= block_q:
        return f"SMALL_Q={small_q} is not less than BLOCK_Q={block_q}"
    if small_q and shape.batch == 1:
        return f"SMALL_Q={small_q} does not pay: a single sequence has one short tile at most"
    if warps * ROWS_PER_WARP > block_q:
        return f"{warps} warps would share {block_q} rows; each needs {ROWS_PER_WARP} of its own"
    return _overflow(config, shape, device, warps * device.warp_size) or (
        "num_stages above 2 does not pay on AMD: there is no asynchronous copy to hide"
        if device.backend == "hip" and stages > 2
        else None
    )


def _overflow(config: Config, shape: PagedShape, device: Device, threads: int) -> str | None:
    """Why registers or shared memory do not hold the tiles, or None."""
    width_k, width_v = padded_widths(shape.head_dim, shape.head_dim_v)
    live = config.integer("BLOCK_Q") * (width_v + config.integer("BLOCK_K")) // threads
    if live > MAX_LIVE_VALUES:
        return f"{live} fp32 values a thread stay live, more than {MAX_LIVE_VALUES} registers hold"
    tile_bytes = config.integer("BLOCK_K") * (width_k + width_v) * ITEM_BYTES[shape.dtype]
    loads = tile_bytes // 16 // threads
    if loads > MAX_LOADS:
        return f"a thread has {loads} loads of 16 bytes a tile, more than {MAX_LOADS} addresses stay in registers"
    held = max(1, config.integer("num_stages") - 1) * tile_bytes  # the pipeline holds at least as much
    if held > device.shared_memory_bytes:
        return f"K and V tiles take {held} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    return None


def default(shape: PagedShape, device: Device) -> Config:
    """A config that fits every GPU of its family: 99 KB of shared memory on NVIDIA (227 KB from sm_90), 64 KB on AMD.

    Raises:
        InvalidShapeError: the kernel does not support the shape.
    """
    if (problem := unsupported(shape)) is not None:
        raise InvalidShapeError(problem)
    width_k, width_v = padded_widths(shape.head_dim, shape.head_dim_v)
    width, item_bytes, is_hip = max(width_k, width_v), ITEM_BYTES[shape.dtype], device.backend == "hip"
    is_large = device.shared_memory_bytes >= LARGE_SHARED_MEMORY
    block_q = 128 if width <= 128 or (width <= 256 and is_large) else 64 if width <= 256 else 32
    block_k = 64 if width <= 128 else 32
    if item_bytes == 4:  # of which an element takes more registers: small tiles, or they spill
        block_q, block_k = 32, 16
    warps = 4 if block_q * width <= 128 * 64 and item_bytes == 2 else 8
    block_q = min(block_q, max(16, _power_of_two(shape.batch * shape.seq_q * shape.group)))
    block_k = min(block_k, max(16, _power_of_two(shape.max_context)))
    # Beside the tiles in flight lie the queries. Instructions that read a tile where it lies (wgmma) hold one buffer
    # a stage, others one less.
    room = device.shared_memory_bytes - block_q * width_k * item_bytes
    buffers = room // (block_k * (width_k + width_v) * item_bytes)
    stages = min(3, buffers) if is_large else min(2, buffers + 1)
    return Config(
        BLOCK_Q=block_q,
        SMALL_Q=16 if block_q > 16 and shape.batch > 1 else 0,
        BLOCK_K=block_k,
        order="head",
        num_warps=min(warps, block_q // ROWS_PER_WARP),
        num_stages=1 if is_hip else max(1, stages),
        waves_per_eu=0 if is_hip else None,
        matrix_instr_nonkdim=16 if is_hip else None,
        kpack=1 if is_hip else None,
    )


def hints(config: Config, shape: PagedShape, device: Device) -> tuple[float, ...]:
    """Estimates that the time depends on smoothly: log2 of the live values a thread, of a warp's rows, of the shared
    memory of a block, of the warps that an SM holds at once, and of the tiles for each block of the device."""
    block_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    width_k, width_v = padded_widths(shape.head_dim, shape.head_dim_v)
    threads = warps * device.warp_size
    live = block_q * (width_v + block_k) / threads
    shared = ITEM_BYTES[shape.dtype] * (stages * block_k * (width_k + width_v) + block_q * width_k)
    registers = min(MAX_REGISTERS, live + ADDRESS_REGISTERS) * threads
    resident = max(0.5, min(device.shared_memory_bytes / shared, SM_REGISTERS / registers))
    tiles = shape.batch * shape.kv_heads * -(-shape.seq_q * shape.group // block_q)
    estimates = (live, block_q / warps, shared, resident * warps, tiles / resident / device.sm_count)
    return tuple(math.log2(value) for value in estimates)


def query_counts(shape: PagedShape) -> tuple[int, ...]:
    """New queries of each sequence: ``seq_q``, or of a ragged batch one each but for the last, which has all others.

    That is a mixed batch of serving: one chunk, no longer than ``max_context``, among sequences that decode.
    """
    if shape.batch == 1 or shape.mean_context == shape.max_context:
        return (shape.seq_q,) * shape.batch
    others = shape.batch - 1
    return (*(1,) * others, min(shape.batch * shape.seq_q - others, shape.max_context))


def cost(shape: PagedShape) -> Cost:
    """FLOPs of the two products over the visible part of the scores; bytes of q, the output, and the keys and values
    that are seen, once each.

    Every sequence counts with ``mean_context`` keys, or with as many as it has queries if those are more, aligned at
    their ends. 2 FLOPs a multiply-add, softmax not counted, as in ``flash_attention``.
    """
    width = shape.head_dim + shape.head_dim_v
    pairs = keys = queries = 0
    for count, sequences in Counter(query_counts(shape)).items():
        context = max(count, shape.mean_context) if shape.mean_context < shape.max_context else shape.mean_context
        dense = AttentionShape(
            batch=1, heads=1, seq_q=count, seq_kv=context, head_dim=8, causal=True, window=shape.window
        )
        seen = context if shape.window is None else min(context, shape.window + count - 1)
        pairs += sequences * visible_pairs(dense)
        keys += sequences * seen
        queries += sequences * count
    return Cost(
        flops=2 * shape.heads * pairs * width,
        bytes=(queries * shape.heads + keys * shape.kv_heads) * width * ITEM_BYTES[shape.dtype],
    )


def _power_of_two(value: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (value - 1).bit_length()


_KERNEL_FOLDERS: Final = Path(__file__).parent.parent / "kernels"

OPERATION: Final = Operation(
    name="paged_prefill",
    shape_class=PagedShape,
    space=Space(PARAMETERS, reject, default, hints),
    cost=cost,
    sources=(
        _KERNEL_FOLDERS / "paged_prefill" / "forward.py",
        _KERNEL_FOLDERS / "paged_prefill" / "launch.py",
        # The helpers that the kernels share.
        _KERNEL_FOLDERS / "paged_decode" / "keys.py",
        _KERNEL_FOLDERS / "paged_decode" / "pages.py",
        _KERNEL_FOLDERS / "paged_decode" / "softmax.py",
        _KERNEL_FOLDERS / "flash_attention" / "forward.py",
        _KERNEL_FOLDERS / "precision.py",
        Path(__file__).with_name("flash_attention.py"),
    ),
    entry=("launch",),
    unsupported=unsupported,
)
