"""The space of flash attention over split widths in Triton: parameters, validity and default."""

import math
from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import bounds, compiled_tiles
from autotune.search_spaces.flash_attention import triton
from autotune.search_spaces.flash_attention.split_widths import split_widths
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space

TITLE: Final = "flash_attention/triton_split_width"
PARAMETERS: Final = (
    Parameter("BLOCK_Q", (16, 32, 64, 128, 256)),
    Parameter("BLOCK_K", (16, 32, 64, 128, 256)),
    Parameter("num_warps", (1, 2, 4, 8, 16)),
    Parameter("num_stages", (1, 2, 3, 4, 5)),
    Parameter("loads", ("pointer", "descriptor")),
    *bounds.WAVE_HINTS,
)

GROUP_ROWS: Final = 64  # of queries, from which on Hopper multiplies by warp groups
# On Hopper, of 16 bits and of float32: rows of queries, rows of keys, warps and stages. The first spills nothing at any
# width, the second nothing up to heads of 96 (Triton 3.6.0, sm_90, 2026-11-26;
# ``python -m tests.kernels.flash_attention.split_width_sample sm_90``). None is timed.
HOPPER_TILE: Final[compiled_tiles.Tile] = (128, 64, 8, 3)
HOPPER_TILE_OF_FLOAT32: Final[compiled_tiles.Tile] = (32, 16, 2, 1)


def supports(shape: AttentionShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if (problem := bounds.quantized(TITLE, shape) or bounds.operands(TITLE, shape)) is not None:
        return problem
    if (problem := bounds.too_wide(TITLE, shape)) is not None:
        return problem
    if not any(rest for _, rest in split_widths(shape.head_dim, shape.head_dim_v)):
        widths = f"head_dim={shape.head_dim} and head_dim_v={shape.head_dim_v}"
        return f"{TITLE} computes heads that two tiles pad less than one, and {widths} take as many columns in one"
    return None


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    if (problem := supports(shape, device)) is not None:
        return problem
    block_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    width_k, width_v = _columns(shape)
    return (
        bounds.too_long("BLOCK_Q", block_q, shape.seq_q, f"length of {shape.seq_q}")
        or bounds.too_long("BLOCK_K", block_k, shape.seq_kv, f"length of {shape.seq_kv}")
        or bounds.too_many_live(block_q, width_v + block_k, warps * device.warp_size)
        or bounds.too_few_rows(block_q, warps, triton.ROWS_PER_WARP)
        or bounds.too_large_pipeline(block_k * (width_k + width_v) * ITEM_BYTES[shape.dtype], stages, device)
        or bounds.needless_stages(stages, device)
        or _miscompiled(config, shape, device)
    )


def _columns(shape: AttentionShape) -> tuple[int, int]:
    """Return the columns of the tiles of keys, both pieces together, and of those of values."""
    of_keys, of_values = split_widths(shape.head_dim, shape.head_dim_v)
    return sum(of_keys), sum(of_values)


def _miscompiled(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why the binary of a config is not to be believed, or None.

    Where warp groups multiply and pieces lie in the same shared memory in different swizzles, as they do without a
    pipeline, ptxas 12.8 lets some of their instructions take a descriptor from a register that nothing has written
    (``tests.kernels.flash_attention.uniform_registers`` finds them). Of float32, tiles are cut into numbers of
    bfloat16, which have no pipeline.
    """
    if not device.has("wgmma") or config.integer("BLOCK_Q") < GROUP_ROWS:
        return None
    if ITEM_BYTES[shape.dtype] != 2:
        return (
            f"BLOCK_Q={config['BLOCK_Q']} of {shape.dtype} is miscompiled on {device.arch}, {GROUP_ROWS} and more are"
        )
    if config["num_stages"] == 1:
        return f"num_stages=1 of BLOCK_Q={config['BLOCK_Q']} is miscompiled on {device.arch}, where a pipeline is not"
    return None


def default(shape: AttentionShape, device: Device) -> Config:
    """Return the default of ``flash_attention/triton``, whose one tile takes more; on Hopper a tile that spills least.

    Loads of 16 bits are by descriptor there: they take 142 registers a thread instead of 166 of heads of 72.
    """
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    chosen = dict(triton.default(shape, device))
    if device.has("wgmma"):
        is_half = ITEM_BYTES[shape.dtype] == 2
        block_q, block_k, warps, stages = HOPPER_TILE if is_half else HOPPER_TILE_OF_FLOAT32
        block_q = min(block_q, bounds.padded_length(shape.seq_q))
        chosen |= {"BLOCK_Q": block_q, "BLOCK_K": min(block_k, bounds.padded_length(shape.seq_kv))}
        chosen |= {"num_warps": min(warps, block_q // triton.ROWS_PER_WARP), "num_stages": stages}
        chosen["loads"] = "descriptor" if is_half else "pointer"
    return Config(chosen)


def hints(config: Config, shape: AttentionShape, device: Device) -> tuple[float, ...]:
    """Estimate what the time depends on smoothly: log2 of the live values a thread, of a warp's rows, of the shared
    memory of a block, and of the warps that an SM holds at once."""
    block_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    width_k, width_v = _columns(shape)
    threads = warps * device.warp_size
    live = block_q * (width_v + block_k) / threads
    held = ITEM_BYTES[shape.dtype] * (stages * block_k * (width_k + width_v) + block_q * width_k)
    at_once = bounds.blocks_at_once(live + triton.ADDRESS_REGISTERS, threads, held, device)
    return tuple(math.log2(value) for value in (live, block_q / warps, held, warps * at_once))


def default_basis(device: Device) -> str:
    """Return what chose the default: registers and spills, and on Hopper also races."""
    timed = "timed over heads of 72 to 192 on an NVIDIA H200" if device.has("wgmma") else "timed on no GPU"
    return f"chosen by compiled resources, and {timed}"


IMPLEMENTATION: Final = Implementation(
    name="triton_split_width",
    operation="flash_attention",
    space=Space(PARAMETERS, reject, default, hints, default_basis=default_basis),
    kernel="autotune.kernels.flash_attention.triton_split_width:KERNEL",
    sources=(
        *kernel_files("flash_attention/triton_split_width", "forward", "launch"),
        Path(__file__).with_name("split_widths.py"),
        *SHARED,
    ),
    entry=("launch",),
    supports=supports,
)
