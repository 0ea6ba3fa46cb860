"""The space of flash attention in Triton: parameters, validity and default."""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import bounds, compiled_tiles
from autotune.search_spaces.flash_attention import hopper_ranking
from autotune.search_spaces.flash_attention.hopper_features import TRITON
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space
from autotune.varlen_shape import VarlenShape

PARAMETERS: Final = (
    Parameter("BLOCK_Q", (16, 32, 64, 128, 256)),
    Parameter("BLOCK_K", (16, 32, 64, 128, 256)),
    Parameter("num_warps", (1, 2, 4, 8, 16)),
    Parameter("num_stages", (1, 2, 3, 4, 5)),
    Parameter("loads", ("pointer", "descriptor")),
    *bounds.WAVE_HINTS,
)

# Matrix instructions give a warp 16 rows (mma m16, wgmma m64 by four warps, MFMA 16x16). Warps that share rows would
# have to exchange every row's maximum and sum.
ROWS_PER_WARP: Final = 16

ADDRESS_REGISTERS: Final = 40  # beside the live values: pointers, masks, row maxima; typical of the recorded sweeps


# Where no recording ships, of 16 bits and of float32: chosen by what the binaries take, as
# ``python -m benchmarks.architecture_defaults`` does (Triton 3.6.0, 2026-11-23); its rule chooses tiles that take 1.002
# times the best on the sweeps of sm_90, and by pointers alone 1.017 times the best of those.
TILES_OF_16_BITS: Final[compiled_tiles.Tiles] = {
    "large": ((64, 128, 4, 3), (128, 64, 8, 3), (64, 16, 4, 3)),
    "small": ((64, 32, 4, 3), (128, 64, 8, 3), (128, 16, 8, 2)),
    "small with tensor maps": ((128, 64, 4, 3), (128, 64, 8, 3), (128, 16, 8, 2)),
    "waves": ((128, 128, 4, 1), (64, 64, 4, 1), (64, 32, 4, 1)),
}
TILES_OF_FLOAT32: Final[compiled_tiles.Tiles] = {
    "large": ((32, 16, 2, 3), (32, 16, 2, 1), (16, 16, 1, 1)),
    "small": ((64, 16, 4, 3), (32, 16, 2, 1), (16, 16, 1, 1)),
    "small with tensor maps": ((64, 16, 4, 3), (32, 16, 2, 1), (16, 16, 1, 1)),
    "waves": ((64, 32, 4, 1), (64, 32, 4, 1), (64, 16, 4, 1)),
}


def supports(shape: AttentionShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    title = "flash_attention/triton"
    return bounds.quantized(title, shape) or bounds.operands(title, shape) or bounds.too_wide(title, shape)


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    block_q, block_k, warps, stages = (
        config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    )
    width_k, width_v = bounds.padded_widths(shape.head_dim, shape.head_dim_v)
    return (
        bounds.too_long("BLOCK_Q", block_q, shape.seq_q, f"length of {shape.seq_q}")
        or bounds.too_long("BLOCK_K", block_k, shape.seq_kv, f"length of {shape.seq_kv}")
        or bounds.too_many_live(block_q, width_v + block_k, warps * device.warp_size)
        or bounds.too_few_rows(block_q, warps, ROWS_PER_WARP)
        or bounds.too_large_pipeline(block_k * (width_k + width_v) * ITEM_BYTES[shape.dtype], stages, device)
        or bounds.needless_stages(stages, device)
    )


def default(shape: AttentionShape, device: Device) -> Config:
    """Return a config that fits every GPU of its family, by the least shared memory that one has.

    On Hopper ``hopper_ranking`` chooses; elsewhere it is what is served where no portfolio knows the architecture.
    """
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    return hopper_ranking.first_valid(TRITON, shape, device, reject) or usual_config(shape, device)


def usual_config(shape: AttentionShape, device: Device) -> Config:
    """Return the default of a shape that is supported by the rule that no recording chose."""
    width = max(bounds.padded_widths(shape.head_dim, shape.head_dim_v))
    tiles = TILES_OF_FLOAT32 if shape.dtype == "float32" else TILES_OF_16_BITS
    block_q, block_k, warps, stages = compiled_tiles.compiled_tile(tiles, width, device) or _usual_tile(
        shape, width, device
    )
    block_q, block_k = (
        min(block, bounds.padded_length(length)) for block, length in ((block_q, shape.seq_q), (block_k, shape.seq_kv))
    )
    return Config(
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        num_warps=min(warps, block_q // ROWS_PER_WARP),
        num_stages=stages,
        loads="pointer",
        **bounds.usual_wave_hints(device, waves=2),
    )


def estimate(config: Config, shape: AttentionShape, device: Device) -> float | None:
    """Return a number in proportion to the expected time, of one shape alone; None of what networks do not rank."""
    return hopper_ranking.estimate(TRITON, config, shape, device) if supports(shape, device) is None else None


def _usual_tile(shape: AttentionShape, width: int, device: Device) -> compiled_tiles.Tile:
    """Return the tile where recordings ship, which only those of float32 chose: the portfolio's come before it.

    Three numbers of bfloat16 stand for each of float32 (``tiles.precision``), so that tiles are small, or registers
    spill. Hopper multiplies by warp groups from 64 rows on, which leave keys and values in shared memory: 1.6 times as
    fast as the best of 32 rows at heads of 64 (139.7 us), 1.7 at 128 (271.0), 1.5 at 256 (1012). One race each; batch
    2, 16 heads, 1024 tokens, causal; NVIDIA H200, 2026-11-22; ``autotune sweep`` of these shapes times all of them.
    """
    if shape.dtype != "float32":
        block_q, block_k, stages = 128, 64, 3 if width <= 128 else 2
    elif device.has("wgmma"):
        block_q, block_k, stages = (64, 64, 2) if width <= 64 else (64, 32, 1) if width <= 128 else (128, 16, 1)
    else:
        block_q, block_k, stages = (32, 32, 3) if width <= 64 else (32, 16, 1) if width <= 128 else (16, 16, 1)
    rows = min(block_q, bounds.padded_length(shape.seq_q))
    return block_q, block_k, 4 if rows * width <= 128 * 64 else 8, stages


def heuristics(shape: AttentionShape, device: Device) -> tuple[Config, ...]:
    """Return the tiles of Triton's tutorial and of FlashAttention-2; none of float32, which neither has.

    The tutorial's are those that it had for Hopper and for others before it tuned itself, as they are widely copied:
    rows of queries and of keys, warps, and stages as far as there are as many here, of its 7 for Hopper
    (https://github.com/triton-lang/triton/blob/release/2.2.x/python/tutorials/06-fused-attention.py; 2.2.0 has no tag,
    triton-lang/triton#3339). FlashAttention-2's are those of its forward pass
    (``tile_of_flash_attention_2``); it has no stages, so three, and tiles are loaded by descriptors on devices that
    copy them, as the tutorial does today.
    """
    if shape.dtype == "float32":
        return ()
    width = max(shape.head_dim, shape.head_dim_v)
    is_hopper = device.has("wgmma")
    warps, stages = (8, 5 if width >= 64 else 3) if is_hopper else (4, 4 if width <= 64 else 3)
    tutorial = (128, 64 if width <= 64 else 32, warps, stages, "pointer")
    tile = tile_of_flash_attention_2(shape, device)
    flash_attention_2 = (*tile, 3, "descriptor" if device.has("tensor_maps") else "pointer")
    names = ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages", "loads")
    hints_of_waves = bounds.usual_wave_hints(device)
    return tuple(
        Config({**dict(zip(names, values, strict=True)), **hints_of_waves}) for values in (tutorial, flash_attention_2)
    )


def tile_of_flash_attention_2(shape: AttentionShape | VarlenShape, device: Device) -> tuple[int, int, int]:
    """Return rows of queries, rows of keys, and warps of FlashAttention-2's forward pass without dropout.

    By the head dim that it pads to: of 96 and 128 smaller tiles on sm_86 to sm_89, square under a causal mask without a
    window; of 256 the larger one where it fits a block and two blocks of the smaller do not fit an SM, as on A100
    (https://github.com/Dao-AILab/flash-attention/blob/0251105a2fb19d2957484b7f023cd8c115286ced/csrc/flash_attn/src/flash_fwd_launch_template.h).
    """
    width = max(shape.head_dim, shape.head_dim_v)
    if width <= 64:
        return 128, 128, 4
    if width <= 128:
        is_ampere = device.has("async_copies") and not device.has("tensor_maps")  # or Ada
        has_less_memory = is_ampere and device.shared_memory_bytes < 128 * 1024
        if has_less_memory and shape.causal and shape.window is None:
            return 64, 64, 4
        return 128, 32 if has_less_memory and width > 96 else 64, 4
    # An SM has 1 KiB more than one block may use.
    is_a100 = 128 * 1024 <= device.shared_memory_bytes < 191 * 1024
    return (128, 64, 8) if width <= 192 or is_a100 else (64, 64, 4)


def hints(config: Config, shape: AttentionShape, device: Device) -> tuple[float, ...]:
    """Estimate what the time depends on smoothly: log2 of the live values a thread, of a warp's rows, of the shared
    memory of a block, and of the warps that an SM holds at once."""
    of_block = bounds.estimates(config, shape, device, other_registers=ADDRESS_REGISTERS)
    return tuple(math.log2(value) for value in of_block)


IMPLEMENTATION: Final = Implementation(
    name="triton",
    operation="flash_attention",
    space=Space(
        *(PARAMETERS, reject, default, hints),
        heuristics=heuristics,
        default_basis=compiled_tiles.default_basis,
        estimate=estimate,
        is_learned=hopper_ranking.is_ranked,
    ),
    kernel="autotune.kernels.flash_attention.triton:KERNEL",
    sources=(*kernel_files("flash_attention/triton", "forward", "launch"), *SHARED),
    entry=("launch",),
    supports=supports,
)
