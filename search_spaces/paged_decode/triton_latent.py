"""The space of paged decode over latents in Triton: parameters, validity and default.

A program holds the queries of its rows, whole, and some tiles of keys in shared memory, and an accumulator as wide as
the values in registers. That leaves few tiles: those of 576, 320 and 288 columns were compiled for sm_90, every one in
16 bits (Triton 3.6.0, 2026-11-26), and the bounds here leave those that fit and spill some hundred bytes at most.
"""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import bounds
from autotune.search_spaces.paged_decode.decode_merging import SPLITS
from autotune.search_spaces.paged_decode.latent_work import bad_splits, count_blocks, usual_splits
from autotune.search_spaces.paged_decode.operation import unsupported
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import LATENT_WIDTHS, PagedShape
from autotune.space import Config, Parameter, Space

PARAMETERS: Final = (
    Parameter("BLOCK_ROWS", (16, 32, 64, 128)),  # query heads, times queries, in one tile
    Parameter("BLOCK_K", (16, 32, 64, 128)),  # keys in one tile
    Parameter("NUM_SPLITS", SPLITS),  # programs that share the keys of a sequence
    # Of two warp groups on 64 rows: each computes all scores of a tile, or they share the keys, by a branch.
    Parameter("SCORES", ("each", "shared")),
    Parameter("num_warps", (4, 8)),
    Parameter("num_stages", (1, 2, 3)),
    *bounds.WAVE_HINTS,
)

WGMMA_ROWS: Final = 64  # of a tile whose products are by warp groups
TWO_GROUPS: Final = 8  # warps
WGMMA_KEYS: Final = 32  # with fewer, a warp group of two has no columns of its own
MAX_LIVE: Final = 160  # accumulator and scores of a thread: with more, all of 576 columns spilled 350 bytes and more
SHORT_RUN: Final = 16  # keys side by side: below, addresses take registers that tiles of 64 x 64 have not

TILES: Final = ((64, 8, 3), (64, 8, 2), (32, 8, 3), (32, 8, 2), (16, 8, 2), (16, 4, 2))  # keys, warps, stages
NARROW: Final = 256  # columns of values: twice as many rows stay in registers
ROWS, ROWS_OF_NARROW = 64, 128


def why_unsupported(shape: PagedShape, device: Device) -> str | None:
    """Return the reason why this does not compute a shape on a device, or None."""
    if (problem := unsupported(shape)) is not None:
        return problem
    if not shape.is_latent:
        allowed = ", ".join(f"{keys}/{values}" for keys, values in LATENT_WIDTHS.items())
        widths = f"head_dim={shape.head_dim} with head_dim_v={shape.head_dim_v}"
        return f"{widths} is not of latents, which paged_decode/triton_latent computes: {allowed}"
    return None


def uses_warp_groups(rows: int, device: Device) -> bool:
    """Return True if products of so many rows are by warp groups, which read tiles until they are done."""
    return rows >= WGMMA_ROWS and device.has("wgmma")


def shared_bytes(shape: PagedShape, device: Device, *, rows: int, keys: int, stages: int) -> int:
    """Return the shared memory of a block: queries, tiles of keys, weights; at least an accumulator, to be stored.

    As compiled for sm_90; of 64 and more rows weights may stay in registers.
    """
    held = stages if uses_warp_groups(rows, device) else max(1, stages - 1)
    width = shape.head_dim_v + bounds.padded_widths(shape.head_dim - shape.head_dim_v, shape.head_dim_v)[0]
    elements = (rows + held * keys) * width + rows * keys
    return max(ITEM_BYTES[shape.dtype] * elements, 4 * rows * shape.head_dim_v)


def reject(config: Config, shape: PagedShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    if (problem := why_unsupported(shape, device)) is not None:
        return problem
    if (reason := _bad_tile(config, shape, device)) is not None:
        return reason
    stages = config.integer("num_stages")
    if stages == 1 and device.has("async_copies"):
        return "num_stages=1 has no load in flight while a tile is computed"
    return bounds.needless_stages(stages, device) or _bad_splits(config, shape, device)


def _bad_tile(config: Config, shape: PagedShape, device: Device) -> str | None:
    """Return why a tile does not fit the shape, registers or shared memory, or None."""
    rows, keys, warps, stages = (config.integer(name) for name in ("BLOCK_ROWS", "BLOCK_K", "num_warps", "num_stages"))
    needed = shape.heads * shape.seq_q
    if rows > bounds.padded_length(needed):
        return f"BLOCK_ROWS={rows} is more than the padded {needed} rows of a sequence"
    if keys > bounds.padded_length(shape.max_context):
        return f"BLOCK_K={keys} is longer than the padded context of {shape.max_context}"
    live = rows * (shape.head_dim_v + keys) // (warps * device.warp_size)
    if live > MAX_LIVE:
        return f"{live} fp32 values a thread stay live, more than the {MAX_LIVE} that leave room for addresses"
    if rows >= WGMMA_ROWS and device.has("tensor_memory"):
        return f"BLOCK_ROWS={rows} has an accumulator in tensor memory, which the scores of a tile need too"
    if uses_warp_groups(rows, device) and keys < WGMMA_KEYS:
        return f"BLOCK_K={keys} is fewer than the {WGMMA_KEYS} keys that two warp groups share"
    has_two_groups = uses_warp_groups(rows, device) and rows == WGMMA_ROWS and warps == TWO_GROUPS
    if config["SCORES"] == "shared" and not has_two_groups:
        return f"SCORES=shared is of two warp groups on {WGMMA_ROWS} rows, not of {warps} warps on {rows}"
    taken = shared_bytes(shape, device, rows=rows, keys=keys, stages=stages)
    if taken > device.shared_memory_bytes:
        return f"queries and tiles take {taken} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    return None


def _bad_splits(config: Config, shape: PagedShape, device: Device) -> str | None:
    rows, keys = config.integer("BLOCK_ROWS"), config.integer("BLOCK_K")
    return bad_splits(config.integer("NUM_SPLITS"), shape, device, rows=rows, keys=keys)


def default(shape: PagedShape, device: Device) -> Config:
    """Return a config that fits every GPU of its family, by the least shared memory that one has.

    By what was compiled for sm_90, none was timed yet: as many rows as stay in registers, so that few programs read the
    same keys; the largest tile that does not spill and has another in flight; splits that fill the SMs in whole waves.
    """
    if (problem := why_unsupported(shape, device)) is not None:
        raise InvalidShapeError(problem)
    most = ROWS_OF_NARROW if shape.head_dim_v <= NARROW else ROWS
    needed = bounds.padded_length(shape.heads * shape.seq_q)
    found = [
        config
        for count in (128, 64, 32, 16)
        if count <= min(most, needed)
        for config in _tiles(shape, device, count)
        if _bad_tile(config, shape, device) is None
    ]
    return next((each for each in found if _bad_splits(each, shape, device) is None), found[0])


def _tiles(shape: PagedShape, device: Device, rows: int) -> list[Config]:
    """List configs of so many rows, the best first."""
    has_addresses = rows >= ROWS and shape.head_dim_v > NARROW and math.gcd(shape.page_size, SHORT_RUN) < SHORT_RUN
    return [_config(shape, device, rows, *tile) for tile in TILES if not (has_addresses and tile[0] >= ROWS)]


def _config(shape: PagedShape, device: Device, rows: int, keys: int, warps: int, stages: int) -> Config:
    return Config(
        BLOCK_ROWS=rows,
        BLOCK_K=keys,
        NUM_SPLITS=usual_splits(shape, device, rows=rows, keys=keys),
        SCORES="each",
        num_warps=warps,
        num_stages=stages if device.has("async_copies") else 1,
        **bounds.usual_wave_hints(device),
    )


def default_basis(device: Device) -> str:
    """Return that the default was compiled and not timed."""
    return "a formula over registers and shared memory, checked by compiled resources; none was timed"


def heuristics(shape: PagedShape, device: Device) -> tuple[Config, ...]:
    """Return the fixed tiles of vLLM's Triton kernel for latents: 16 heads, 32 keys, two stages, four splits.

    https://github.com/vllm-project/vllm/blob/0f490657b61ebaa34ed228e1616f9115be2e4adf/vllm/attention/ops/triton_decode_attention.py
    """
    config = Config(
        BLOCK_ROWS=16,
        BLOCK_K=32,
        NUM_SPLITS=4,
        SCORES="each",
        num_warps=4,
        num_stages=2 if device.has("async_copies") else 1,
        **bounds.usual_wave_hints(device),
    )
    return (config,)


def hints(config: Config, shape: PagedShape, device: Device) -> tuple[float, ...]:
    """Estimate what the time depends on smoothly: log2 of the live values a thread, of the shared memory of a block, of
    the blocks that an SM holds at once, and of the programs for each of those."""
    rows, keys, warps, stages = (config.integer(name) for name in ("BLOCK_ROWS", "BLOCK_K", "num_warps", "num_stages"))
    threads = warps * device.warp_size
    live = rows * (shape.head_dim_v + keys) / threads
    held = shared_bytes(shape, device, rows=rows, keys=keys, stages=stages)
    resident = bounds.blocks_at_once(live + OTHER_REGISTERS, threads, held, device)
    programs = config.integer("NUM_SPLITS") * shape.batch * count_blocks(shape, rows)
    return tuple(math.log2(value) for value in (live, held, resident, programs / resident / device.sm_count))


OTHER_REGISTERS: Final = 72  # of a thread beside its live values; typical of compiled configs

IMPLEMENTATION: Final = Implementation(
    name="triton_latent",
    operation="paged_decode",
    space=Space(PARAMETERS, reject, default, hints, heuristics=heuristics, default_basis=default_basis),
    kernel="autotune.kernels.paged_decode.triton_latent:KERNEL",
    supports=why_unsupported,
    batch_invariant=lambda config, shape: config,  # splits are shares of a sequence's own tiles
    sources=(
        *kernel_files("paged_decode/triton_latent", "forward", "launch"),
        *kernel_files("paged_decode/triton", "forward", "combine", "queries", "tile_list", "launch"),
        *kernel_files("paged_cache", "layout"),
        *SHARED,
    ),
    entry=("launch_latent",),
)
