"""Bounds that spaces share: why a config cannot pay, by arithmetic that needs no compiler."""

from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES, KV_ITEM_BYTES, QUANTIZED_DTYPES
from autotune.rounding import power_of_two
from autotune.shape import AttentionShape, PagedShape
from autotune.space import Config, Parameter, Value
from autotune.varlen_shape import VarlenShape

# A thread has at most 255 registers of 32 bits; the accumulator and a tile of scores live at once, so more of them
# must spill. (256 x 256 with four warps also took 32 s to compile: Triton 3.6, sm_90, one core, 2026-11-21.)
MAX_LIVE_VALUES: Final = 256

MAX_WIDTH: Final = 256  # of heads that one accumulator holds
MIN_BLOCK: Final = 16  # rows or columns of a tile: matrix instructions take no fewer
NARROW_WINDOW: Final = 128  # keys that a row sees, at most: blocks of 128 would be mostly masked
MIN_BLOCK_K: Final = 32  # of kernels that split keys: shorter tiles spend their time on beginning and ending
SWIZZLE_COLUMNS: Final = 64  # of 16 bits: the 128 bytes of the widest swizzle

# Of an SM and of a thread (CUDA C++ Programming Guide, table of compute capabilities).
SM_REGISTERS: Final = 65536
MAX_REGISTERS: Final = 255
LARGE_SHARED_MEMORY: Final = 227 * 1024  # bytes: sm_90 and sm_100

# Waves per SIMD to leave room for, the matrix instruction's width, and packed K reads from shared memory.
WAVE_HINTS: Final = (
    Parameter("waves_per_eu", (0, 2), needs="wave_hints"),
    Parameter("matrix_instr_nonkdim", (16, 32), needs="wave_hints"),
    Parameter("kpack", (1, 2), needs="wave_hints"),
)


def quantized(title: str, shape: AttentionShape) -> str | None:
    """Return why an implementation without scales does not compute a shape, or None."""
    return f"{title} computes no {shape.dtype}" if shape.dtype in QUANTIZED_DTYPES else None


def operands(title: str, shape: AttentionShape) -> str | None:
    """Return why an implementation without operands does not compute a shape, or None."""
    if shape.attn_mask is not None:
        return f"{title} takes no mask, and the shape has attn_mask={shape.attn_mask!r}"
    asked = (name for name in ("sinks", "kv_ends") if getattr(shape, name))
    return next((f"{title} takes no {name}, and the shape has {name}=True" for name in asked), None)


def too_wide(title: str, shape: AttentionShape) -> str | None:
    """Return why an implementation whose tiles hold whole heads does not compute a shape, or None."""
    for name in ("head_dim", "head_dim_v"):
        if getattr(shape, name) > MAX_WIDTH:
            return f"{title} computes heads up to {MAX_WIDTH}, and the shape has {name}={getattr(shape, name)}"
    return None


def lacks_cache_type(shape: PagedShape, device: Device) -> str | None:
    """Return why a device cannot convert the cache's type, or None."""
    if shape.kv_dtype == "float8_e4m3fn" and not device.has("fp8_e4m3"):
        return f"kv_dtype='float8_e4m3fn' needs conversions that {device.arch} lacks; float8_e5m2 and int8 do not"
    return None


def padded_length(length: int) -> int:
    """Return the longest block that pays for a length."""
    return max(MIN_BLOCK, power_of_two(length))


def padded_widths(head_dim: int, head_dim_v: int) -> tuple[int, int]:
    """Return the widths of the tiles of keys and of values: powers of two, at least 16, and of one swizzle.

    Tiles of 64 and more 16-bit columns are swizzled in 128 bytes, narrower ones in fewer. Where keys and values
    differed in that and were loaded without a pipeline, Triton 3.6.0 computed wrong numbers or read out of bounds
    (NVIDIA H200, 2026-11-21: head_dim 64 to 256 with head_dim_v 8 to 32, tiles of 64 x 64 and more, fp16 and bf16).
    """
    width_k, width_v = padded_length(head_dim), padded_length(head_dim_v)
    shared = min(SWIZZLE_COLUMNS, max(width_k, width_v))
    return max(width_k, shared), max(width_v, shared)


def too_long(name: str, block: int, length: int, described: str) -> str | None:
    """Return why a block is longer than the padded length, or None."""
    return f"{name}={block} is longer than the padded {described}" if block > padded_length(length) else None


def too_many_live(rows: int, columns: int, threads: int) -> str | None:
    """Return why the accumulator and scores of a tile do not stay in registers, or None; ``columns`` are of both."""
    live = rows * columns // threads
    if live > MAX_LIVE_VALUES:
        return f"{live} fp32 values a thread stay live, more than {MAX_LIVE_VALUES} registers hold"
    return None


def too_many_loads(tile_bytes: int, threads: int, most: int) -> str | None:
    """Return why the addresses of a tile's loads of 16 bytes do not stay in registers, or None."""
    loads = tile_bytes // 16 // threads
    if loads > most:
        return f"a thread has {loads} loads of 16 bytes a tile, more than {most} addresses stay in registers"
    return None


def too_few_rows(rows: int, warps: int, each: int) -> str | None:
    """Return why a tile has too few rows for its warps, or None."""
    return f"{warps} warps would share {rows} rows; each needs {each} of its own" if rows < warps * each else None


def too_large_pipeline(tile_bytes: int, stages: int, device: Device) -> str | None:
    """Return why shared memory does not hold the pipeline, or None; it holds at least ``stages - 1`` tiles."""
    held = max(1, stages - 1) * tile_bytes
    if held > device.shared_memory_bytes:
        return f"K and V tiles take {held} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    return None


def needless_stages(stages: int, device: Device) -> str | None:
    """Return why so many stages do not pay on a device, or None."""
    if stages > 2 and not device.has("async_copies"):
        return f"num_stages above 2 does not pay on {device.arch}: there is no asynchronous copy to hide"
    return None


def usual_wave_hints(device: Device, *, waves: int = 0) -> dict[str, Value]:
    """Return the default of ``WAVE_HINTS``; None where a device takes none."""
    usual = {"waves_per_eu": waves, "matrix_instr_nonkdim": 16, "kpack": 1}
    return {name: value if device.has("wave_hints") else None for name, value in usual.items()}


def blocks_at_once(registers: float, threads: int, held_bytes: int, device: Device) -> float:
    """Estimate how many blocks an SM holds, given the registers of a thread and the shared memory of a block."""
    by_registers = SM_REGISTERS / (min(MAX_REGISTERS, registers) * threads)
    return max(0.5, min(device.shared_memory_bytes / held_bytes, by_registers))


def estimates(
    config: Config, shape: AttentionShape | PagedShape | VarlenShape, device: Device, *, other_registers: int
) -> tuple[float, float, float, float]:
    """Estimate the live values a thread, a warp's rows, a block's shared memory, and the warps that an SM holds.

    ``other_registers`` is what a thread has beside its live values.
    """
    names = ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    block_q, block_k, warps, stages = (config.integer(name) for name in names)
    width_k, width_v = padded_widths(shape.head_dim, shape.head_dim_v)
    threads = warps * device.warp_size
    live = block_q * (width_v + block_k) / threads
    tile, item_bytes = block_k * (width_k + width_v), ITEM_BYTES[shape.dtype]
    held = item_bytes * (stages * tile + block_q * width_k)
    if isinstance(shape, PagedShape) and shape.kv_dtype != shape.dtype:  # a converted tile lies beside those in flight
        held = item_bytes * (tile + block_q * width_k) + KV_ITEM_BYTES[shape.kv_dtype] * stages * tile
    return live, block_q / warps, held, warps * blocks_at_once(live + other_registers, threads, held, device)
