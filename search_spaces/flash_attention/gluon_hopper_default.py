"""The default of flash attention in Gluon for Hopper: what recordings rank first, and elsewhere a rule."""

from functools import lru_cache
from typing import Final

from autotune.device import Device
from autotune.errors import InvalidShapeError
from autotune.search_spaces.flash_attention import hopper_ranking
from autotune.search_spaces.flash_attention.gluon_hopper_bounds import reject, supports
from autotune.search_spaces.flash_attention.hopper_features import GLUON
from autotune.search_spaces.flash_attention.tile_order import end_of, soonest_order
from autotune.search_spaces.flash_attention.tile_times import LONGEST
from autotune.search_spaces.flash_attention.usual_schedule import usual_schedule
from autotune.shape import AttentionShape
from autotune.space import Config

# Rough estimates of schedules of one size of tiles are 2 % off in the mean (``tests/search_spaces/test_makespan.py``).
LEAST_GAIN: Final = 0.025


def default(shape: AttentionShape, device: Device) -> Config:
    """Return the best candidate by networks that know recordings (``hopper_ranking``), and where they rank nothing the
    usual schedule, in another order of tiles where that ends much sooner."""
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    return hopper_ranking.first_valid(GLUON, shape, device, reject) or _in_order(shape, device)


@lru_cache(maxsize=1024)  # a look-up asks for it several times, and estimates take milliseconds
def _in_order(shape: AttentionShape, device: Device) -> Config:
    """Return the usual schedule, with fewer rows a tile or in another order where that gains more than estimates err.

    One program may get all long tiles of an order: 5 x 24 heads over 1386 tokens took 1.50 times as long as with one
    program less (NVIDIA H200, 2026-11-27). In windows and with softcap estimates err too much.
    """
    usual = usual_schedule(shape, device)
    if shape.window is not None or shape.softcap or shape.seq_q > LONGEST:
        return usual
    consumers, block_k = usual.integer("consumers"), usual.integer("BLOCK_K")
    rivals = [
        Config({**usual, "consumers": rows, **soonest_order(shape, device, rows, block_k)})
        for rows in range(1, consumers + 1)
    ]
    rivals = [Config({**each, "ping_pong": "off" if each["consumers"] == 1 else each["ping_pong"]}) for each in rivals]
    valid = [each for each in rivals if reject(each, shape, device) is None]
    soonest = min(valid, key=lambda each: end_of(each, shape, device), default=usual)
    gains = end_of(soonest, shape, device) < (1.0 - LEAST_GAIN) * end_of(usual, shape, device)
    return soonest if gains else usual


def estimate(config: Config, shape: AttentionShape, device: Device) -> float | None:
    """Return a number in proportion to the expected time, of one shape alone; None of what networks do not rank."""
    return hopper_ranking.estimate(GLUON, config, shape, device) if supports(shape, device) is None else None
