"""The space of the flash attention kernel: parameters, validity, default and cost."""

import math
from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.errors import InvalidShapeError
from autotune.operation import Cost, Operation
from autotune.shape import ITEM_BYTES, AttentionShape
from autotune.space import Config, Parameter, Space

PARAMETERS: Final = (
    Parameter("BLOCK_Q", (16, 32, 64, 128, 256)),
    Parameter("BLOCK_K", (16, 32, 64, 128, 256)),
    Parameter("num_warps", (1, 2, 4, 8, 16)),
    Parameter("num_stages", (1, 2, 3, 4, 5)),
    Parameter("loads", ("pointer", "descriptor")),
    # AMD only: waves per SIMD to leave room for, the matrix instruction's width, and packed K reads from LDS.
    Parameter("waves_per_eu", (0, 2), backend="hip"),
    Parameter("matrix_instr_nonkdim", (16, 32), backend="hip"),
    Parameter("kpack", (1, 2), backend="hip"),
)

# A thread has at most 255 registers of 32 bits; the accumulator and a tile of scores live at once, so more of them
# must spill. (256 x 256 with four warps also took 32 s to compile: Triton 3.6, sm_90, one core, 2026-11-21.)
MAX_LIVE_VALUES: Final = 256

# Matrix instructions give a warp 16 rows (mma m16, wgmma m64 by four warps, MFMA 16x16). Warps that share rows would
# have to exchange every row's maximum and sum.
ROWS_PER_WARP: Final = 16

# For estimates of how many blocks an SM holds at once (CUDA C++ Programming Guide, table of compute capabilities).
SM_REGISTERS: Final = 65536
MAX_REGISTERS: Final = 255  # a thread
ADDRESS_REGISTERS: Final = 40  # beside the live values: pointers, masks, row maxima; typical of the recorded sweeps

SWIZZLE_COLUMNS: Final = 64  # of 16 bits: the 128 bytes of the widest swizzle

LARGE_SHARED_MEMORY: Final = 227 * 1024  # bytes: sm_90 and sm_100


def padded_widths(head_dim: int, head_dim_v: int) -> tuple[int, int]:
    """Widths of the tiles of keys and of values: powers of two, at least 16, and of one swizzle.

    Tiles of 64 and more 16-bit columns are swizzled in 128 bytes, narrower ones in fewer. Where keys and values
    differed in that and were loaded without a pipeline, Triton 3.6.0 computed wrong numbers or read out of bounds
    (NVIDIA H200, 2026-11-21: head_dim 64 to 256 with head_dim_v 8 to 32, tiles of 64 x 64 and more, fp16 and bf16).
    """
    width_k, width_v = (max(16, 1 << (width - 1).bit_length()) for width in (head_dim, head_dim_v))
    shared = min(SWIZZLE_COLUMNS, max(width_k, width_v))
    return max(width_k, shared), max(width_v, shared)


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Why a config cannot pay for this shape on this device, by bounds that need no compiler; None if it may."""
    block_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    if shape.varlen:
        return "varlen=True is not supported by flash_attention"
    for name, block, length in (("BLOCK_Q", block_q, shape.seq_q), ("BLOCK_K", block_k, shape.seq_kv)):
        if block > max(16, 1 << (length - 1).bit_length()):
            return f"{name}={block} is longer than the padded length of {length}"
    width_k, width_v = padded_widths(shape.head_dim, shape.head_dim_v)
    live = (block_q * width_v + block_q * block_k) // (warps * device.warp_size)
    if live > MAX_LIVE_VALUES:
        return f"{live} fp32 values a thread stay live, more than {MAX_LIVE_VALUES} registers hold"
    if block_q < warps * ROWS_PER_WARP:
        return f"{warps} warps would share {block_q} rows; each needs {ROWS_PER_WARP} of its own"
    # The pipeline holds at least stages - 1 tiles of K and V.
    held = max(1, stages - 1) * block_k * (width_k + width_v) * ITEM_BYTES[shape.dtype]
    if held > device.shared_memory_bytes:
        return f"K and V tiles take {held} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    if device.backend == "hip" and stages > 2:
        return "num_stages above 2 does not pay on AMD: there is no asynchronous copy to hide"
    return None


def default(shape: AttentionShape, device: Device) -> Config:
    """A config that fits every GPU of its family: 99 KB of shared memory on NVIDIA (227 KB from sm_90), 64 KB on AMD.

    Raises:
        InvalidShapeError: the kernel does not support the shape.
    """
    if shape.varlen:
        raise InvalidShapeError("varlen=True is not supported by flash_attention; expected varlen=False")
    width = max(padded_widths(shape.head_dim, shape.head_dim_v))
    is_hip = device.backend == "hip"
    if shape.dtype == "float32":
        block_q, block_k, stages = _tile_of_float32(width, device)
    else:
        block_q, block_k, stages = _tile_of_16_bits(width, device)
    block_q, block_k = (
        min(block, max(16, 1 << (length - 1).bit_length()))
        for block, length in ((block_q, shape.seq_q), (block_k, shape.seq_kv))
    )
    warps = 4 if block_q * width <= 128 * 64 else 8
    return Config(
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        num_warps=min(warps, block_q // ROWS_PER_WARP),
        num_stages=1 if is_hip else stages,
        loads="pointer",
        waves_per_eu=2 if is_hip else None,
        matrix_instr_nonkdim=16 if is_hip else None,
        kpack=1 if is_hip else None,
    )


def _tile_of_16_bits(width: int, device: Device) -> tuple[int, int, int]:
    """Rows of queries, rows of keys, and stages."""
    has_large_memory = device.shared_memory_bytes >= LARGE_SHARED_MEMORY
    block_q, block_k = (128, 64) if width <= 128 or has_large_memory else (64, 32)
    return block_q, block_k, 3 if width <= 64 or (has_large_memory and width <= 128) else 2


def _tile_of_float32(width: int, device: Device) -> tuple[int, int, int]:
    """Small tiles, or registers spill: on NVIDIA three numbers of bfloat16 stand for each (``kernels.precision``).

    Hopper multiplies by warp groups from 64 rows on, which leave keys and values in shared memory: 1.6 times as fast as
    the best of 32 rows at heads of 64 (139.7 us), 1.7 at 128 (271.0), 1.5 at 256 (1012). One race each; batch 2, 16
    heads, 1024 tokens, causal; NVIDIA H200, 2026-11-22; ``autotune sweep`` of these shapes times all of them. Elsewhere
    more rows spill (compiled, not measured).
    """
    if device.backend == "hip":
        return 32, 32 if width <= 128 else 16, 1
    if device.arch == "sm_90":
        return (64, 64, 2) if width <= 64 else (64, 32, 1) if width <= 128 else (128, 16, 1)
    return (32, 32, 3) if width <= 64 else (32, 16, 1) if width <= 128 else (16, 16, 1)


def hints(config: Config, shape: AttentionShape, device: Device) -> tuple[float, ...]:
    """Estimates that the time depends on smoothly: log2 of the live values a thread, of a warp's rows, of the shared
    memory of a block, and of the warps that an SM holds at once."""
    block_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    width_k, width_v = padded_widths(shape.head_dim, shape.head_dim_v)
    threads = warps * device.warp_size
    live = block_q * (width_v + block_k) / threads
    shared = ITEM_BYTES[shape.dtype] * (stages * block_k * (width_k + width_v) + block_q * width_k)
    registers = min(MAX_REGISTERS, live + ADDRESS_REGISTERS) * threads
    blocks = max(0.5, min(device.shared_memory_bytes / shared, SM_REGISTERS / registers))
    return tuple(math.log2(value) for value in (live, block_q / warps, shared, blocks * warps))


def cost(shape: AttentionShape) -> Cost:
    """FLOPs of the two products over the visible part of the score matrix; bytes of q, k, v and the output once each.

    The field's convention (FlashAttention's benchmarks): 2 FLOPs a multiply-add, softmax not counted.
    """
    pairs = visible_pairs(shape)
    flops = 2 * shape.batch * shape.heads * pairs * (shape.head_dim + shape.head_dim_v)
    queries = shape.batch * shape.heads * shape.seq_q * (shape.head_dim + shape.head_dim_v)
    seen = shape.seq_kv
    if shape.window is not None:  # the first query's window begins the band; the last query sees the last key
        seen = min(seen, shape.seq_q + shape.window - 1)
    keys = shape.batch * shape.kv_heads * seen * (shape.head_dim + shape.head_dim_v)
    return Cost(flops=flops, bytes=(queries + keys) * ITEM_BYTES[shape.dtype])


def visible_pairs(shape: AttentionShape) -> int:
    """Pairs of a query and a key that it sees, of one head: exact, in closed form over the band between the masks."""
    offset = shape.seq_kv - shape.seq_q
    reach = shape.seq_q + shape.seq_kv  # further than any key lies
    behind = reach if shape.window is None else shape.window - 1
    ahead = 0 if shape.causal else behind
    # Query i sees max(0, i + offset - behind) <= j <= min(seq_kv - 1, i + offset + ahead).
    return _sum_clamped(offset + ahead + 1, shape.seq_q, shape.seq_kv) - _sum_clamped(
        offset - behind, shape.seq_q, shape.seq_kv
    )


def _sum_clamped(first: int, count: int, limit: int) -> int:
    """Sum of ``min(max(first + i, 0), limit)`` for ``0 <= i < count``."""

    def below(value: int) -> int:  # sum of max(0, value - i) over the count terms that end at value
        return value * (value + 1) // 2 if value > 0 else 0

    last = first + count - 1
    return (below(last) - below(first - 1)) - (below(last - limit) - below(first - 1 - limit))


_KERNEL_FOLDER: Final = Path(__file__).parent.parent / "kernels" / "flash_attention"

OPERATION: Final = Operation(
    name="flash_attention",
    shape_class=AttentionShape,
    space=Space(PARAMETERS, reject, default, hints),
    cost=cost,
    sources=(
        _KERNEL_FOLDER / "forward.py",
        _KERNEL_FOLDER / "launch.py",
        _KERNEL_FOLDER.with_name("precision.py"),
        Path(__file__),
    ),
    entry=("launch",),
)
