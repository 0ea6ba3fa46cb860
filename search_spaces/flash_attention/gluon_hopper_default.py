"""The default of flash attention in Gluon for Hopper: a rule, and what is estimated to end sooner."""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.search_spaces import bounds
from autotune.search_spaces.flash_attention import makespan
from autotune.search_spaces.flash_attention.gluon_hopper_bounds import (
    FEW_KEYS,
    keys_seen,
    reject,
    shared_bytes,
    supports,
    tiles_differ,
    widths,
)
from autotune.search_spaces.flash_attention.makespan import ScheduleTimes, TileSchedule
from autotune.search_spaces.flash_attention.tile_times import LONGEST, class_of
from autotune.search_spaces.flash_attention.warp_groups import ROWS
from autotune.shape import AttentionShape
from autotune.space import Config, Value

# What another schedule must gain over the usual, by estimates. These err by 3 to 4 % in the mean, with softcap by 7 for
# heads of 128 and 4 for 256, by 2 to 5 in windows of 1,024 keys or more over heads of 96 and 128, and in others by 3 to
# 23 (``benchmarks.schedule_times``, 2026-11-28). Without softcap or window less than that is enough: of recorded shapes
# that were estimated to gain 2.5 to 5 % and timed both, three gained 7.8 % in the mean; with softcap another order, of
# one shape, 2 x 48/8 heads over 1853 tokens, gains 8 % where 7 are estimated. Estimates within 2 % are equal.
LEAST_GAIN: Final = 0.025
LEAST_GAIN_SOFTCAP: Final[Mapping[int, float]] = {128: 0.06, 256: 0.07}  # by the columns of a tile
LEAST_GAIN_WINDOW: Final = 0.1
NARROWEST_ESTIMATED: Final = 1024
NEARLY: Final = 0.98
# Workers, section and row order of what is tried: where all tiles of a head are alike, and where they differ. Of equal
# estimates the first counts. What begins with the longest tiles of several heads ends evenly even where estimates err:
# in natural order, 10 x 64 heads over 324 tokens took 1.19 times as long, 6 x 32 over 555 1.22 (H200, 2026-11-28).
WORKERS: Final = ("sm", "sm-1", "2sm")
ALIKE_ORDERS: Final = tuple((workers, 1, "natural") for workers in WORKERS)
ORDERS: Final = (
    *(("sm", section, "reversed") for section in (4, 16)),
    *((workers, section, "reversed") for section in (4, 16) for workers in WORKERS[1:]),
    *((workers, 1, "alternating") for workers in WORKERS),
    *ALIKE_ORDERS,
    ("tiles", 1, "reversed"),
)
LONG: Final = 2**19  # elements of the keys that a row sees: of more, the order of tiles matters more than turns
# Of long prompts, of which little is left over at the end, alternating orders are the surest: by sections of 16 heads
# 2 x 32/4 heads over 13,413 tokens took 1.12 times as long, estimated 1.01 (H200, 2026-11-28).
LONG_ORDERS: Final = tuple(sorted(ORDERS, key=lambda order: order[2] != "alternating"))
# Keys and values of the heads of a section, which the L2 cache is to hold: an H100 has 50 MB (NVIDIA, "H100 Tensor Core
# GPU Architecture").
SECTION_BYTES: Final = 50_000_000


@lru_cache(maxsize=1024)
def default(shape: AttentionShape, device: Device) -> Config:
    """Return the usual schedule, or the tiles and their order by which the busiest multiprocessor is done much sooner.

    Short sequences may leave most rows of the usual tiles empty, and one program may get all long tiles of their order:
    31 x 64 heads of 128 over 129 tokens took 2.1 times as long as with tiles of 192 rows, 5 x 24 over 1386 tokens 1.50
    times as long as with one program less (NVIDIA H200, 2026-11-27; ``python -m benchmarks.served_regret --drawn 60``).
    Where narrow windows hide keys, with softcap over few keys, and of few tiles of narrow heads estimates err too much,
    and of very long sequences they would take long.
    """
    rule = usual_schedule(shape, device)
    usual = _with_short_blocks(rule, shape)
    times = makespan.TIMES.get(class_of(shape), {})
    gain = _least_gain(shape)
    if gain is None or _tile(usual) not in times or shape.seq_q > LONGEST or _has_few_narrow_tiles(shape, device):
        return usual
    # The lower of both is what others must end before: short blocks take less than is estimated, over 512 tokens of 28
    # heads 0.94 times as long as one consumer's tiles, which were to gain 5 % (NVIDIA H200, 2026-11-28).
    usual_end = min(_estimate(each, shape, device, times) for each in {rule, usual} if _tile(each) in times)
    ends = _ends(usual, _tile(usual), shape, device)
    found = _first_of_soonest(ends, (1.0 - gain) * usual_end) or usual
    least = (1.0 - gain) * min([usual_end, *ends.values()])  # of other tiles
    for tile, of_tile in times.items():
        if tile != _tile(usual) and makespan.lower_bound(shape, tile, of_tile, device.sm_count) < least:
            ends = _ends(usual, tile, shape, device)
            if (rival := _first_of_soonest(ends, least)) is not None:
                found, least = rival, ends[rival]
    return found


def estimate(config: Config, shape: AttentionShape, device: Device) -> float | None:
    """Return the microseconds that the tiles of a config take at best, by its order; None of what was not fitted."""
    times = makespan.TIMES.get(class_of(shape), {})
    is_fitted = _tile(config) in times and shape.window is None and shape.seq_q <= LONGEST
    return _estimate(config, shape, device, times) if is_fitted and supports(shape, device) is None else None


def _with_short_blocks(usual: Config, shape: AttentionShape) -> Config:
    """Return the usual schedule with shorter blocks where causal rows of heads of 128 see few keys, of which an edge
    wastes less: where estimates are near, they take 0.81 to 1.0 times (five drawn shapes; NVIDIA H200, 2026-11-28)."""
    if not (shape.causal and widths(shape) == (128, 128) and shape.seq_kv <= FEW_KEYS) or usual["BLOCK_K"] != 128:
        return usual
    consumers = usual.integer("consumers")
    return Config({**usual, "BLOCK_K": 64, "slots": _slots(shape, consumers, 64), "results": "own"})


def _ends(usual: Config, tile: tuple[int, int], shape: AttentionShape, device: Device) -> dict[Config, float]:
    """Return the estimates of a tile in each order; of a tile that is not valid none."""
    times = makespan.TIMES[class_of(shape)]
    return {rival: _estimate(rival, shape, device, times) for rival in _rivals(usual, tile, shape, device)}


def _first_of_soonest(ends: Mapping[Config, float], least: float) -> Config | None:
    """Return the first that ends before ``least`` and as soon as any, or None."""
    soonest = min(ends.values(), default=math.inf)
    return next((rival for rival, end in ends.items() if end < least and NEARLY * end <= soonest), None)


def _least_gain(shape: AttentionShape) -> float | None:
    """Return the part of its time that another schedule must gain over the usual, or None where estimates err more."""
    width = max(widths(shape))
    if shape.window is not None:
        is_recorded = shape.causal and 64 < width <= 128 and not shape.softcap
        return LEAST_GAIN_WINDOW if is_recorded and shape.window >= NARROWEST_ESTIMATED else None
    if shape.softcap:
        return LEAST_GAIN_SOFTCAP.get(width) if shape.seq_kv > FEW_KEYS else None
    return LEAST_GAIN


def _tile(config: Config) -> tuple[int, int]:
    return config.integer("consumers"), config.integer("BLOCK_K")


def _estimate(
    config: Config, shape: AttentionShape, device: Device, times: Mapping[tuple[int, int], ScheduleTimes]
) -> float:
    return makespan.estimate(shape, schedule_of(config, device), times[_tile(config)], device.sm_count)


def _rivals(usual: Config, tile: tuple[int, int], shape: AttentionShape, device: Device) -> Iterator[Config]:
    """Yield the usual schedule with another tile in each order; nothing if that tile is not valid."""
    consumers, block_k = tile
    workers, section, row_order = ALIKE_ORDERS[0]
    order: dict[str, Value] = {"workers": workers, "section": section, "row_order": row_order}
    is_usual = tile == _tile(usual)  # whose slots may be of a narrow window
    slots = usual["slots"] if is_usual else _slots(shape, consumers, block_k)
    config = Config({**usual, "consumers": consumers, "BLOCK_K": block_k, "slots": slots, "results": "own", **order})
    if consumers not in (2, usual["consumers"]):
        config = Config({**config, "ping_pong": "off"})
    if shared_bytes(config, shape) > device.shared_memory_bytes:
        config = Config({**config, "results": "queries"})
    if reject(config, shape, device) is None:
        for workers, section, row_order in _orders(shape, consumers):
            if section == 1 or _section_bytes(section, shape) <= SECTION_BYTES:
                yield Config({**config, "workers": workers, "section": section, "row_order": row_order})


def _orders(shape: AttentionShape, consumers: int) -> tuple[tuple[str, int, str], ...]:
    """Return the workers, section and row order of what is tried."""
    if not tiles_differ(shape, consumers):
        return ALIKE_ORDERS
    return LONG_ORDERS if keys_seen(shape) * max(widths(shape)) >= LONG else ORDERS


def _section_bytes(section: int, shape: AttentionShape) -> int:
    """Return the bytes of the keys and values of so many heads of queries."""
    kv_heads = math.ceil(section / shape.group)
    return kv_heads * shape.seq_kv * (shape.head_dim + shape.head_dim_v) * ITEM_BYTES[shape.dtype]


def schedule_of(config: Config, device: Device) -> TileSchedule:
    """Return the part of a config that says how much each multiprocessor has to do."""
    count = device.sm_count
    fewer = {f"sm-{less}": max(1, count - less) for less in (1, 3)}
    workers = {"tiles": None, "sm": count, **fewer, "2sm": 2 * count}
    order = config.integer("section"), str(config["row_order"])
    return TileSchedule(*_tile(config), workers[str(config["workers"])], *order)


def usual_schedule(shape: AttentionShape, device: Device) -> Config:
    """Return a schedule like those that won (NVIDIA H200 and H100, 2026-11-26; ``python -m benchmarks.record``).

    Those are 16 cells of heads of 64 and 128, both masks and lengths of 512 to 16,384, and 59 shapes of named models.
    """
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    width_k, width_v = widths(shape)
    widest = max(width_k, width_v)
    seen = keys_seen(shape)
    is_long, is_longer = seen * widest >= LONG, seen * widest > LONG
    most = 3 if widest <= 64 and (is_long or not shape.causal) else 2
    consumers = min(most, math.ceil(shape.seq_q / ROWS))
    is_ordered = shape.causal and tiles_differ(shape, consumers)
    is_capped = bool(shape.softcap) and widest > 64  # 1.04 to 1.40 times as long by 128 keys (H200, 2026-11-27)
    block_k = 64 if width_k > 192 or width_v > 128 or seen <= bounds.NARROW_WINDOW or is_capped else 128
    # Turns, and the queries of two tiles, hide what a tile waits for: of long ones that is little.
    takes_turns = not (is_longer if shape.causal else is_long)
    is_small = widest <= 64 and most == 2
    config = Config(
        consumers=consumers,
        BLOCK_K=block_k,
        slots=2,
        query_slots=2 if widest <= 128 and takes_turns else 1,
        ping_pong="issue" if takes_turns and shape.seq_q > ROWS else "off",
        values="late" if is_small else "early",
        results="own",
        workers="sm",
        section=_heads_of_a_section(shape, device, consumers) if widest <= 64 and is_ordered and not is_long else 1,
        row_order="natural" if not is_ordered else "alternating" if widest > 64 or is_long else "reversed",
    )
    if 64 < widest <= 128 and is_ordered:
        is_plain = is_longer and not shape.softcap
        config = Config({**config, **_schedule(is_narrow=seen <= bounds.NARROW_WINDOW, is_longer=is_plain)})
    if is_ordered and seen > bounds.NARROW_WINDOW:
        config = Config({**config, **_schedule_of_few_keys(shape, device, widest, seen)})
    fits = shared_bytes(config, shape) <= device.shared_memory_bytes
    return config if fits else Config({**config, "results": "queries"})


def _slots(shape: AttentionShape, consumers: int, block_k: int) -> int:
    """Return 4 where short blocks of heads of 128 see few keys and fit so often, else 2.

    There four take 0.97 times as long as two in the mean, of 11 shapes of up to 512 tokens (NVIDIA H200, 2026-11-28;
    ``python -m benchmarks.served_regret --drawn 60 --seed 3``).
    """
    is_deep = (consumers, block_k) == (2, 64) and widths(shape) == (128, 128) and shape.seq_kv <= FEW_KEYS
    return 4 if is_deep and not shape.softcap and shape.window is None else 2


def _heads_of_a_section(shape: AttentionShape, device: Device, consumers: int) -> int:
    """Return 4 where heads share keys, which they find in the L2 cache, else 16.

    But a section of about as many tiles as multiprocessors gives each the same rows of every section, some the longest:
    2 x 32 heads of 64 and 4096 tokens took 1.44 times as long as 16 (NVIDIA H200, 2026-11-27; ``benchmarks.record``).
    """
    tiles = 4 * math.ceil(shape.seq_q / (consumers * ROWS))
    return 4 if shape.group > 1 and 2 * tiles <= device.sm_count else 16


def _schedule(*, is_narrow: bool, is_longer: bool) -> dict[str, Value]:
    """Return the order of causal tiles of heads up to 128 wide where it matters most, with what it needs.

    A narrow window leaves a tile a few blocks, so that neighbours share most of what they read: one after the other,
    and with a slot more, it takes 0.83 to 0.88 times the usual schedule. Longest first, a program for each tile, long
    prompts take 0.86 to 0.99 times (NVIDIA H200 and H100, 2026-11-26; ``python -m benchmarks.record grid``).
    """
    if is_narrow:
        return {"slots": 3, "values": "late", "workers": "sm-3", "section": 16, "row_order": "reversed"}
    return {"workers": "tiles", "row_order": "reversed"} if is_longer else {}


def _schedule_of_few_keys(shape: AttentionShape, device: Device, widest: int, seen: int) -> dict[str, Value]:
    """Return what differs where the diagonal is much of the work; nothing elsewhere.

    With softcap, sections of four heads end more evenly: prompts of 512 tokens take 0.60 to 0.84 times as long where
    each multiprocessor has several tiles. Few tiles of narrow heads take 0.83 to 0.87 times by three consumers of
    narrow blocks (NVIDIA H200, 2026-11-27; ``python -m benchmarks.record grid``).
    """
    if shape.softcap and seen <= FEW_KEYS:
        few: dict[str, Value] = {"section": 4, "row_order": "reversed", "ping_pong": "off"}
        return few if widest > 128 else {**few, "slots": 3}
    if _has_few_narrow_tiles(shape, device):
        few = {"consumers": 3, "BLOCK_K": 64, "query_slots": 1, "values": "early"}
        return {**few, "workers": "2sm", "section": 1, "row_order": "natural"}
    return {}


def _has_few_narrow_tiles(shape: AttentionShape, device: Device) -> bool:
    """Return True if causal rows of narrow heads see few keys, and have tiles for few programs each."""
    tiles = shape.batch * shape.heads * math.ceil(shape.seq_q / (2 * ROWS))
    return (
        shape.causal
        and max(widths(shape)) <= 64
        and keys_seen(shape) <= FEW_KEYS
        and shape.seq_q > 2 * ROWS
        and tiles < 2 * device.sm_count
    )
