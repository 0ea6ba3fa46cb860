"""The space of flash attention with a mask operand or sinks in Triton: parameters, validity and default."""

import math
from dataclasses import replace
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

TITLE: Final = "flash_attention/triton_masked"
PARAMETERS: Final = (
    Parameter("BLOCK_Q", (16, 32, 64, 128, 256)),
    Parameter("BLOCK_K", (16, 32, 64, 128, 256)),
    # What becomes of tiles that a boolean mask hides wholly: to see that they are takes their part of the mask before
    # keys are loaded, which then no pipeline does.
    Parameter("hidden_tiles", ("computed", "skipped")),
    Parameter("num_warps", (1, 2, 4, 8, 16)),
    Parameter("num_stages", (1, 2, 3, 4, 5)),
    Parameter("loads", ("pointer", "descriptor")),  # of queries, keys and values
    *bounds.WAVE_HINTS,
)

GROUP_ROWS: Final = 64  # of a matrix instruction of a warp group
# Of 16 bits on Hopper, of heads wider than 128 and of others: nothing spills (Triton 3.6.0, sm_90, 2026-11-26;
# ``python -m tests.kernels.flash_attention.masked_sample sm_90``). The second won four races with sinks over heads of
# 64, in which 128 rows and 8 warps took 1.15 to 1.42 times as long (NVIDIA H200, 2026-11-26; ``benchmarks.record``).
HOPPER_TILES: Final[tuple[compiled_tiles.Tile, compiled_tiles.Tile]] = ((64, 32, 8, 2), (64, 64, 4, 3))
ADDRESS_REGISTERS: Final = triton.ADDRESS_REGISTERS + 8  # beside the live values: those of the mask, too


def supports(shape: AttentionShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if (problem := bounds.quantized(TITLE, shape) or bounds.too_wide(TITLE, shape)) is not None:
        return problem
    if shape.attn_mask is None and not shape.sinks and not shape.kv_ends:
        return f"{TITLE} computes attn_mask, sinks and kv_ends, and the shape has none"
    return None


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    if (problem := supports(shape, device)) is not None:
        return problem
    block_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    if config["hidden_tiles"] == "skipped" and shape.attn_mask != "boolean":
        return f"hidden_tiles='skipped' needs a boolean mask, and attn_mask={shape.attn_mask!r}"
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    tile_bytes = block_k * (width_k + width_v) * ITEM_BYTES[shape.dtype]
    return (
        bounds.too_long("BLOCK_Q", block_q, shape.seq_q, f"length of {shape.seq_q}")
        or bounds.too_long("BLOCK_K", block_k, shape.seq_kv, f"length of {shape.seq_kv}")
        or bounds.too_many_live(block_q, width_v + block_k, warps * device.warp_size)
        or bounds.too_few_rows(block_q, warps, _rows_per_warp(block_q, shape, device))
        or bounds.too_large_pipeline(tile_bytes, stages, device)
        or bounds.needless_stages(stages, device)
    )


def _rows_per_warp(block_q: int, shape: AttentionShape, device: Device) -> int:
    """Return the least rows of a warp: of wide heads, which spill otherwise, two warp groups may share theirs, each
    with half of the columns."""
    width = max(bounds.padded_widths(shape.head_dim, shape.head_dim_v))
    may_share = device.has("wgmma") and ITEM_BYTES[shape.dtype] == 2 and width > 128 and block_q >= GROUP_ROWS
    return triton.ROWS_PER_WARP // 2 if may_share else triton.ROWS_PER_WARP


def default(shape: AttentionShape, device: Device) -> Config:
    """Return the default of ``flash_attention/triton``; of 16 bits on Hopper a tile that spills nothing.

    Loads are by descriptor there: by pointer their addresses take the registers of the mask.
    """
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    width = max(bounds.padded_widths(shape.head_dim, shape.head_dim_v))
    chosen = {
        **triton.default(replace(shape, attn_mask=None, sinks=False, kv_ends=False), device),
        "hidden_tiles": "computed",
    }
    if device.has("wgmma") and ITEM_BYTES[shape.dtype] == 2:
        block_q, block_k, warps, stages = HOPPER_TILES[width <= 128]
        block_q = min(block_q, bounds.padded_length(shape.seq_q))
        warps = min(warps, block_q // _rows_per_warp(block_q, shape, device))
        chosen |= {"BLOCK_Q": block_q, "BLOCK_K": min(block_k, bounds.padded_length(shape.seq_kv))}
        chosen |= {"num_warps": warps, "num_stages": stages, "loads": "descriptor"}
    return Config({parameter.name: chosen[parameter.name] for parameter in PARAMETERS})


def hints(config: Config, shape: AttentionShape, device: Device) -> tuple[float, ...]:
    """Estimate what the time depends on smoothly: log2 of the live values a thread, of a warp's rows, of the shared
    memory of a block, and of the warps that an SM holds at once."""
    of_block = bounds.estimates(config, shape, device, other_registers=ADDRESS_REGISTERS)
    return tuple(math.log2(value) for value in of_block)


def default_basis(device: Device) -> str:
    """Return what chose the default: registers and spills, and of heads of 64 on Hopper also races."""
    timed = "timed over heads of 64 with sinks on an NVIDIA H200" if device.has("wgmma") else "timed on no GPU"
    return f"chosen by compiled resources, and {timed}"


IMPLEMENTATION: Final = Implementation(
    name="triton_masked",
    operation="flash_attention",
    space=Space(PARAMETERS, reject, default, hints, default_basis=default_basis),
    kernel="autotune.kernels.flash_attention.triton_masked:KERNEL",
    sources=(*kernel_files("flash_attention/triton_masked", "forward", "launch"), *SHARED),
    entry=("launch",),
    supports=supports,
)
