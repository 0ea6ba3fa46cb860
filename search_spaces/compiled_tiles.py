"""Tiles of attention where no recording ships: by the kind of a device, chosen by what their binaries take."""

from collections.abc import Mapping
from typing import Final

from autotune.device import Device

SMALL_SHARED_MEMORY: Final = 99 * 1024  # bytes: sm_86, sm_89 and sm_120; of sm_80 it is 163 KiB

# Rows of queries, rows of keys, warps and stages.
Tile = tuple[int, int, int, int]
# A kind of device, as ``kind_of_unrecorded`` names it, and the tiles of heads padded to 64, 128 and 256.
Tiles = Mapping[str, tuple[Tile, Tile, Tile]]


def kind_of_unrecorded(device: Device) -> str | None:
    """Return the kind of a device of whose architecture no recording ships, by what its binaries depend on.

    ``"waves"`` (gfx942), ``"large"`` (sm_80), ``"small"`` (sm_86, sm_89) or ``"small with tensor maps"`` (sm_120), and
    what is like them. None for the others: recordings of sm_90 ship, and accumulators in tensor memory, which no tile
    is chosen for yet, take other registers.
    """
    if device.has("wave_hints"):
        return "waves"
    if device.has("wgmma") or device.has("tensor_memory"):
        return None
    if device.shared_memory_bytes > SMALL_SHARED_MEMORY:
        return "large"
    return "small with tensor maps" if device.has("tensor_maps") else "small"


def compiled_tile(tiles: Tiles, width: int, device: Device) -> Tile | None:
    """Return the tile of heads padded to a width that was chosen by compiled resources; None where none was."""
    kind = kind_of_unrecorded(device)
    return None if kind is None else tiles[kind][0 if width <= 64 else 1 if width <= 128 else 2]


def default_basis(device: Device) -> str:
    """Return that compiled resources chose a default, where they did; empty elsewhere."""
    if kind_of_unrecorded(device) is None:
        return ""
    return f"chosen by compiled resources, as no recording of {device.arch} ships"
