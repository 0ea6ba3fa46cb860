"""The order of tiles by which the busiest multiprocessor is done the soonest, by estimates."""

from typing import Final

from autotune.device import Device
from autotune.search_spaces.flash_attention import makespan
from autotune.search_spaces.flash_attention.gluon_hopper_bounds import tiles_differ
from autotune.search_spaces.flash_attention.makespan import schedule_of
from autotune.search_spaces.flash_attention.tile_times import LONGEST
from autotune.shape import AttentionShape
from autotune.space import Config, Value

# Workers, section and row order of what is tried: where all tiles of a head are alike, and where they differ. Of equal
# estimates the first counts: what begins with the longest tiles of several heads ends evenly even where they err.
WORKERS: Final = ("sm", "sm-1", "2sm")
ALIKE_ORDERS: Final = tuple((workers, 1, "natural") for workers in WORKERS)
ORDERS: Final = (
    *(("sm", section, "reversed") for section in (4, 16)),
    *((workers, section, "reversed") for section in (4, 16) for workers in WORKERS[1:]),
    *((workers, 1, "alternating") for workers in WORKERS),
    *ALIKE_ORDERS,
    ("tiles", 1, "reversed"),
)


def soonest_order(shape: AttentionShape, device: Device, consumers: int, block_k: int) -> dict[str, Value]:
    """Return workers, section and row order of tiles: those that end the soonest, where tiles differ."""
    if not tiles_differ(shape, consumers):
        return _named(*ALIKE_ORDERS[0])
    if shape.seq_q > LONGEST:
        return _named("sm", 1, "alternating" if shape.causal else "natural")
    tile: dict[str, Value] = {"consumers": consumers, "BLOCK_K": block_k}
    return min((_named(*order) for order in ORDERS), key=lambda order: end_of(Config({**tile, **order}), shape, device))


def end_of(config: Config, shape: AttentionShape, device: Device) -> float:
    """Return the rough microseconds at which the busiest multiprocessor has done a config's tiles."""
    return makespan.estimate(shape, schedule_of(config, device), device.sm_count)


def _named(workers: str, section: int, row_order: str) -> dict[str, Value]:
    return {"workers": workers, "section": section, "row_order": row_order}
