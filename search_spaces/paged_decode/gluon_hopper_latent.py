"""The space of paged decode over latents in Gluon for Hopper: parameters, validity and default.

A program holds the queries of 64 rows, whole, and as many tiles of 64 keys as fit; that leaves little to choose.
"""

import math
from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import flash_attention
from autotune.search_spaces.flash_attention.warp_groups import ROWS
from autotune.search_spaces.paged_decode.decode_merging import SPLITS
from autotune.search_spaces.paged_decode.latent_work import bad_splits, count_blocks, usual_splits
from autotune.search_spaces.paged_decode.triton_latent import why_unsupported
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import PagedShape
from autotune.space import Config, Parameter, Space

NAME: Final = "paged_decode/gluon_hopper_latent"
PARAMETERS: Final = (
    Parameter("NUM_SPLITS", SPLITS),  # programs that share the keys of a sequence
    Parameter("slots", (2, 4)),  # tiles of 64 keys that are held at once: a pair, or two
)

KEYS: Final = 64  # of a tile
SHORTEST_RUN: Final = 16  # keys side by side, in one page: a copy of fewer would take longer than their products
BARRIER_BYTES: Final = 2048  # and row maxima, and what tiles are aligned by


def supports(shape: PagedShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if (problem := why_unsupported(shape, device)) is not None:
        return problem.replace("paged_decode/triton_latent", NAME)
    if not device.has("wgmma"):
        return f"{NAME} needs products of warp groups, which {device.arch} does not have"
    if shape.page_size > 1 and math.gcd(shape.page_size, KEYS) < SHORTEST_RUN:
        allowed = f"of one key or of multiples of {SHORTEST_RUN}"
        return f"{NAME} copies pages {allowed}, and the shape has page_size={shape.page_size}"
    asked = {"window": shape.window is not None, "softcap": shape.softcap, "alibi": shape.alibi}
    found = next((name for name, is_asked in asked.items() if is_asked), None)
    return f"{NAME} computes no {found}, which no model with latents has" if found else None


def shared_bytes(config: Config, shape: PagedShape) -> int:
    """Return the bytes of shared memory that queries, tiles, weights and barriers take."""
    slots = config.integer("slots")
    elements = (ROWS + slots * KEYS) * shape.head_dim
    if shape.head_dim - shape.head_dim_v != KEYS:  # else weights lie in the place of what is beside a latent
        elements += slots * ROWS * KEYS
    return elements * ITEM_BYTES[shape.dtype] + BARRIER_BYTES


def reject(config: Config, shape: PagedShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    if (problem := supports(shape, device)) is not None:
        return problem
    if (taken := shared_bytes(config, shape)) > device.shared_memory_bytes:
        return f"queries and tiles take {taken} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    return bad_splits(config.integer("NUM_SPLITS"), shape, device, rows=ROWS, keys=2 * KEYS)


def default(shape: PagedShape, device: Device) -> Config:
    """Return as many tiles as fit, and splits that fill the SMs in whole waves; compiled, timed by no GPU."""
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    splits = usual_splits(shape, device, rows=ROWS, keys=2 * KEYS)
    config = Config(NUM_SPLITS=splits, slots=4)
    fits = shared_bytes(config, shape) <= device.shared_memory_bytes
    return config if fits else Config({**config, "slots": 2})


def default_basis(device: Device) -> str:
    """Return what chose the default: shared memory and whole waves, timed at one shape."""
    return "chosen by shared memory and whole waves of programs, and timed at one shape on an NVIDIA H200"


def hints(config: Config, shape: PagedShape, device: Device) -> tuple[float, ...]:
    """Estimate what the time depends on smoothly: log2 of the tiles in flight, and of the programs for each SM."""
    programs = config.integer("NUM_SPLITS") * shape.batch * count_blocks(shape, ROWS)
    return math.log2(config.integer("slots")), math.log2(programs / device.sm_count)


IMPLEMENTATION: Final = Implementation(
    name="gluon_hopper_latent",
    operation="paged_decode",
    space=Space(PARAMETERS, reject, default, hints, default_basis=default_basis),
    kernel="autotune.kernels.paged_decode.gluon_hopper_latent:KERNEL",
    supports=supports,
    batch_invariant=lambda config, shape: config,  # splits are shares of a sequence's own tiles
    sources=(
        *kernel_files(
            "paged_decode/gluon_hopper_latent",
            "forward",
            "launch",
            "latent_gather",
            "latent_queries",
            "latent_results",
            "latent_ring",
            "latent_share",
            "latent_weights",
        ),
        *kernel_files("paged_decode/triton", "forward", "combine", "tile_list", "launch"),
        *kernel_files("flash_attention/gluon_hopper", "launch"),
        *kernel_files("paged_cache", "layout"),
        *kernel_files("", "gluon"),
        Path(flash_attention.__file__).with_name("warp_groups.py"),
        *SHARED,
    ),
    entry=("launch_latent",),
    can_interpret=False,
)
