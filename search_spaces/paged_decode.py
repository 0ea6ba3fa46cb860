"""The space of the paged decode kernel: parameters, validity, default and cost."""

import math
from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.errors import InvalidShapeError
from autotune.operation import Cost, Operation
from autotune.search_spaces.flash_attention import padded_widths
from autotune.shape import ITEM_BYTES, KV_ITEM_BYTES, PagedShape
from autotune.space import Config, Parameter, Space

PARAMETERS: Final = (
    # split: programs take equal shares of each sequence; flat: equal shares of the list of all sequences' tiles.
    Parameter("schedule", ("split", "flat")),
    Parameter("BLOCK_K", (16, 32, 64, 128, 256)),
    # split: the shares of each sequence; flat: the programs of an SM, which KV heads and blocks of rows divide.
    Parameter("WORK", (1, 2, 4, 8, 16, 32)),
    Parameter("num_warps", (1, 2, 4, 8)),
    Parameter("num_stages", (1, 2, 3, 4, 5, 6)),
    # AMD only, see flash_attention.
    Parameter("waves_per_eu", (0, 2), backend="hip"),
    Parameter("matrix_instr_nonkdim", (16, 32), backend="hip"),
    Parameter("kpack", (1, 2), backend="hip"),
)

MAX_QUERIES: Final = 8  # of a sequence in one step: speculative decoding asks for a few
MIN_BLOCK_ROWS: Final = 16  # of matrix instructions: fewer rows are padded
MAX_BLOCK_ROWS: Final = 64

MAX_LIVE_VALUES: Final = 256  # fp32 values of accumulator and scores: a thread has 255 registers
# 16-byte loads of a tile of keys and one of values, whose addresses a thread holds at once.
MAX_LOADS: Final = 64

SM_REGISTERS: Final = 65536
MAX_REGISTERS: Final = 255  # a thread
LOAD_REGISTERS: Final = 3  # of one load in flight: 64 bits of address, and its mask; typical of compiled configs
OTHER_REGISTERS: Final = 40

LARGE_SHARED_MEMORY: Final = 227 * 1024  # bytes: sm_90 and sm_100
PARTIAL_BYTES: Final = 4  # partial results are fp32


def row_blocks(rows: int) -> tuple[int, int]:
    """How the rows of one KV head, ``group * seq_q``, are tiled: number of blocks, and rows of each, a power of two.

    Example:
        >>> row_blocks(4), row_blocks(71)
        ((1, 16), (2, 64))
    """
    blocks = -(-rows // MAX_BLOCK_ROWS)
    return blocks, max(MIN_BLOCK_ROWS, _power_of_two(-(-rows // blocks)))


def unsupported(shape: PagedShape) -> str | None:
    """What of a shape the kernel cannot compute, or None."""
    if shape.seq_q > MAX_QUERIES:
        return f"seq_q={shape.seq_q} is not supported by paged_decode; expected 1 to {MAX_QUERIES}"
    if shape.kv_dtype != shape.dtype:
        return f"kv_dtype={shape.kv_dtype!r} is not supported by paged_decode; expected that of dtype, {shape.dtype!r}"
    return None


def reject(config: Config, shape: PagedShape, device: Device) -> str | None:
    """Why a config cannot pay for this shape on this device, by bounds that need no compiler; None if it may."""
    block_k, work, warps, stages = (config.integer(name) for name in ("BLOCK_K", "WORK", "num_warps", "num_stages"))
    if (problem := unsupported(shape)) is not None:
        return problem
    if block_k > max(16, _power_of_two(shape.max_context)):
        return f"BLOCK_K={block_k} is longer than the padded context of {shape.max_context}"
    blocks, rows = row_blocks(shape.group * shape.seq_q)
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
    if work > 1:
        return _idle_work(config, shape, device, blocks * rows)
    return None


def _idle_work(config: Config, shape: PagedShape, device: Device, rows: int) -> str | None:
    """Why the tiles do not suffice for more than one split, or program of an SM; None if they may."""
    work, tiles = config.integer("WORK"), -(-shape.max_context // config.integer("BLOCK_K"))
    if config["schedule"] == "flat":
        programs = work * device.sm_count // (shape.kv_heads * row_blocks(shape.group * shape.seq_q)[0])
        if programs > shape.batch * tiles:
            return f"WORK={work}: {programs} programs of a KV head for at most {shape.batch * tiles} tiles"
        return None
    if work > tiles:
        return f"WORK={work}: as many splits of at most {tiles} tiles"
    partial_bytes = work * rows * shape.head_dim_v * PARTIAL_BYTES
    key_bytes = shape.mean_context * (shape.head_dim + shape.head_dim_v) * KV_ITEM_BYTES[shape.kv_dtype]
    if partial_bytes > key_bytes:
        return f"WORK={work}: partial results of {partial_bytes} bytes for keys and values of {key_bytes} bytes"
    return None


def default(shape: PagedShape, device: Device) -> Config:
    """A config that fits every GPU of its family: 99 KB of shared memory on NVIDIA (227 KB from sm_90), 64 KB on AMD.

    Raises:
        InvalidShapeError: the kernel does not support the shape.
    """
    if (problem := unsupported(shape)) is not None:
        raise InvalidShapeError(problem)
    width_k, width_v = padded_widths(shape.head_dim, shape.head_dim_v)
    width, item_bytes = max(width_k, width_v), ITEM_BYTES[shape.dtype]
    is_hip = device.backend == "hip"
    block_k = min(128, 16384 // width // item_bytes, _power_of_two(shape.max_context))
    block_k = max(16, block_k)
    _, rows = row_blocks(shape.group * shape.seq_q)
    # Beside the tiles in flight lie the queries and the weights of one tile.
    room = device.shared_memory_bytes - rows * (width_k + block_k) * item_bytes
    stages = room // (block_k * (width_k + width_v) * item_bytes) + 1
    config = Config(
        schedule="flat",
        BLOCK_K=block_k,
        WORK=2,
        num_warps=4 if width <= 256 else 8,
        num_stages=1 if is_hip else max(1, min(4 if device.shared_memory_bytes >= LARGE_SHARED_MEMORY else 3, stages)),
        waves_per_eu=0 if is_hip else None,
        matrix_instr_nonkdim=16 if is_hip else None,
        kpack=1 if is_hip else None,
    )
    return config if reject(config, shape, device) is None else Config({**config, "WORK": 1})


def hints(config: Config, shape: PagedShape, device: Device) -> tuple[float, ...]:
    """Estimates that the time depends on smoothly: log2 of the live values a thread, of the bytes that an SM has in
    flight, of the blocks that it holds at once, and of the programs for each of those."""
    block_k, work, warps, stages = (config.integer(name) for name in ("BLOCK_K", "WORK", "num_warps", "num_stages"))
    blocks, rows = row_blocks(shape.group * shape.seq_q)
    width_k, width_v = padded_widths(shape.head_dim, shape.head_dim_v)
    threads = warps * device.warp_size
    tile_bytes = block_k * (width_k + width_v) * KV_ITEM_BYTES[shape.kv_dtype]
    live = rows * (width_v + block_k) / threads
    held = max(1, stages - 1) * tile_bytes
    registers = live + LOAD_REGISTERS * tile_bytes / 16 / threads + OTHER_REGISTERS
    resident = max(
        0.5, min(device.shared_memory_bytes / held, SM_REGISTERS / (min(MAX_REGISTERS, registers) * threads))
    )
    lanes = shape.batch * shape.kv_heads * blocks
    programs = work * (device.sm_count if config["schedule"] == "flat" else lanes)
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


def _power_of_two(value: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (value - 1).bit_length()


_KERNEL_FOLDERS: Final = Path(__file__).parent.parent / "kernels"

OPERATION: Final = Operation(
    name="paged_decode",
    shape_class=PagedShape,
    space=Space(PARAMETERS, reject, default, hints),
    cost=cost,
    sources=(
        *(_KERNEL_FOLDERS / "paged_decode" / f"{name}.py" for name in ("forward", "combine", "softmax", "tiles")),
        _KERNEL_FOLDERS / "paged_decode" / "launch.py",
        _KERNEL_FOLDERS / "flash_attention" / "forward.py",  # the helpers that both kernels use
        Path(__file__).with_name("flash_attention.py"),
        Path(__file__),
    ),
    entry=("launch",),
)
