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

ADDRESS_REGISTERS: Final = triton.ADDRESS_REGISTERS + 8  # beside the live values: those of the mask, too


def supports(shape: AttentionShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if (problem := bounds.quantized(TITLE, shape)) is not None:
        return problem
    if shape.attn_mask is None and not shape.sinks:
        return f"{TITLE} computes attn_mask and sinks, and the shape has neither"
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
        or bounds.too_few_rows(block_q, warps, triton.ROWS_PER_WARP)
        or bounds.too_large_pipeline(tile_bytes, stages, device)
        or bounds.needless_stages(stages, device)
    )


def default(shape: AttentionShape, device: Device) -> Config:
    """Return the default of ``flash_attention/triton``; of 16 bits on Hopper with loads by descriptor.

    Their addresses leave registers for the mask's: of 128 rows and 64 keys nothing spills then, 120 bytes of heads of
    64 without (bfloat16, boolean; Triton 3.6.0, ptxas of its wheel, 2026-11-26; ``tests/search_spaces/test_masked.py``).
    """
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    chosen = {**triton.default(replace(shape, attn_mask=None, sinks=False), device), "hidden_tiles": "computed"}
    return Config({parameter.name: chosen[parameter.name] for parameter in PARAMETERS})


def hints(config: Config, shape: AttentionShape, device: Device) -> tuple[float, ...]:
    """Estimate what the time depends on smoothly: log2 of the live values a thread, of a warp's rows, of the shared
    memory of a block, and of the warps that an SM holds at once."""
    of_block = bounds.estimates(config, shape, device, other_registers=ADDRESS_REGISTERS)
    return tuple(math.log2(value) for value in of_block)


def default_basis(device: Device) -> str:
    """Return that the default was compiled and not timed, which it is of no device yet."""
    return "the default without operands, checked by compiled resources"


IMPLEMENTATION: Final = Implementation(
    name="triton_masked",
    operation="flash_attention",
    space=Space(PARAMETERS, reject, default, hints, default_basis=default_basis),
    kernel="autotune.kernels.flash_attention.triton_masked:KERNEL",
    sources=(*kernel_files("flash_attention/triton_masked", "forward", "launch"), *SHARED),
    entry=("launch",),
    supports=supports,
)
