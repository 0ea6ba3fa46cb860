"""The space of flash attention in Gluon for Hopper: parameters, validity and default."""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import InvalidShapeError
from autotune.implementation import Implementation
from autotune.search_spaces import bounds
from autotune.search_spaces.flash_attention import makespan
from autotune.search_spaces.flash_attention.makespan import TileSchedule, Times
from autotune.search_spaces.flash_attention.warp_groups import REGISTERS, ROWS, part_widths
from autotune.search_spaces.sources import SHARED, kernel_files
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space, Value

PARAMETERS: Final = (
    Parameter("consumers", (1, 2, 3)),  # groups of four warps, of 64 rows of queries each
    Parameter("BLOCK_K", (64, 128)),
    Parameter("slots", (2, 3, 4)),  # of the rings of keys and of values
    Parameter("query_slots", (1, 2)),  # tiles whose queries are held at once
    Parameter("ping_pong", ("off", "issue")),  # whether consumers take turns to issue their scores
    Parameter("values", ("late", "early")),
    Parameter("results", ("own", "queries")),  # the memory that they leave through
    Parameter("workers", ("tiles", "sm", "sm-1", "sm-3", "2sm")),  # programs: one a tile, or so many in all
    Parameter("section", (1, 4, 16)),  # heads whose tiles of the same rows come one after the other
    Parameter("row_order", ("natural", "reversed", "alternating")),
)

OTHER_REGISTERS: Final = 32  # row maxima and sums, addresses, the loop: typical of the compiled sample
GROUP_THREADS: Final = 128
BARRIER_BYTES: Final = 512  # and more than the alignment of tiles takes
FEW_KEYS: Final = 512  # that a row sees: of more, little of a long block is wasted on the edges of a mask
HELD_KEYS: Final = 384  # of a ring: copies are one block ahead of the products, and a second one in their stead
# What another schedule must gain over the usual, by estimates. These err by 2 to 5 % in the mean, with softcap by 7 for
# heads of 128 and 4 for 256, by 4 to 7 in windows of 1,024 keys or more over heads of 96 and 128, and in others by 5 to
# 24 (``benchmarks.schedule_times``, 2026-11-28). Without softcap or window less than that is enough: where both were
# timed, what was estimated to gain 2.5 to 5 % gained 6 % in the mean of 6 shapes. Estimates within 2 % count as equal.
LEAST_GAIN: Final = 0.025
LEAST_GAIN_SOFTCAP: Final[Mapping[int, float]] = {128: 0.13, 256: 0.07}  # by the columns of a tile
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
# Keys and values of the heads of a section, which the L2 cache is to hold: an H100 has 50 MB (NVIDIA, "H100 Tensor Core
# GPU Architecture").
SECTION_BYTES: Final = 50_000_000
LONG: Final = 2**19  # elements of the keys that a row sees: of more, the order of tiles matters more than turns


def supports(shape: AttentionShape, device: Device) -> str | None:
    """Return why the kernel does not compute a shape on a device, or None."""
    if not device.has("wgmma"):
        return f"flash_attention/gluon_hopper needs products of warp groups, which {device.arch} does not have"
    if ITEM_BYTES[shape.dtype] != 2:
        return f"flash_attention/gluon_hopper computes 16 bits, not {shape.dtype}"
    title = "flash_attention/gluon_hopper"
    return bounds.operands(title, shape) or bounds.too_wide(title, shape)


def reject(config: Config, shape: AttentionShape, device: Device) -> str | None:
    """Return why a config cannot pay for this shape on this device, by bounds that need no compiler, or None."""
    return _too_large(config, shape, device) or _needless(config, shape, device) or _indifferent(config, shape)


def _too_large(config: Config, shape: AttentionShape, device: Device) -> str | None:
    consumers, block_k = config.integer("consumers"), config.integer("BLOCK_K")
    width_k, width_v = _widths(shape)
    live = (width_v + block_k + block_k // 2) * ROWS // GROUP_THREADS + OTHER_REGISTERS
    taken = shared_bytes(config, shape)
    if (consumers - 1) * ROWS >= shape.seq_q:
        return f"consumers={consumers} have more rows than a length of {shape.seq_q}"
    if live > REGISTERS[consumers]:
        return f"{live} registers a thread are in use, each of {consumers} consumers has {REGISTERS[consumers]}"
    if taken > device.shared_memory_bytes:
        return f"tiles take {taken} bytes of shared memory, {device.arch} has {device.shared_memory_bytes}"
    if config["results"] == "queries" and width_k < width_v:
        return f"results as wide as {width_v} do not leave through the memory of queries as wide as {width_k}"
    return bounds.too_long("BLOCK_K", block_k, max(64, shape.seq_kv), f"length of {shape.seq_kv}")


def _needless(config: Config, shape: AttentionShape, device: Device) -> str | None:
    consumers, block_k, slots = (config.integer(name) for name in ("consumers", "BLOCK_K", "slots"))
    keys = min(shape.seq_kv, shape.window or shape.seq_kv)
    widest = max(_widths(shape))
    if block_k < 128 and widest <= 128 and keys > FEW_KEYS and not shape.softcap:
        return f"BLOCK_K={block_k} pays for wide heads, softcap or few keys: of {widest} columns, up to {FEW_KEYS}"
    if slots * block_k > HELD_KEYS:
        return f"slots={slots} of BLOCK_K={block_k} are more than {HELD_KEYS} keys, which keep copies far enough ahead"
    if (
        consumers == 1
        and shape.seq_q > ROWS
        and shape.batch * shape.heads * math.ceil(shape.seq_q / (2 * ROWS)) >= device.sm_count
    ):
        return f"consumers=1 pays where tiles of two are fewer than the device's {device.sm_count} multiprocessors"
    with_own = Config({**config, "results": "own"})
    if config["results"] == "queries" and shared_bytes(with_own, shape) <= device.shared_memory_bytes:
        return "results=queries saves shared memory that the device has"
    return None


def _indifferent(config: Config, shape: AttentionShape) -> str | None:
    consumers = config.integer("consumers")
    if config["ping_pong"] != "off" and consumers == 1:
        return "ping_pong: one consumer takes no turns"
    for name, usual in {"section": 1, "row_order": "natural"}.items():
        if config[name] != usual and not _tiles_differ(shape, consumers):
            return f"{name} only matters where tiles of a head see different numbers of keys"
    return None


def _tiles_differ(shape: AttentionShape, consumers: int) -> bool:
    """Return True if tiles of a head may see different numbers of keys, so that their order matters."""
    return (shape.causal or bounds.window_hides(shape)) and shape.seq_q > consumers * ROWS


def _widths(shape: AttentionShape) -> tuple[int, int]:
    """Return the columns that tiles of queries and keys have, all parts together, and those of values."""
    parts, width_k, width_v = part_widths(shape.head_dim, shape.head_dim_v)
    return parts * width_k, width_v


def shared_bytes(config: Config, shape: AttentionShape) -> int:
    """Return the bytes of shared memory that a config's tiles and barriers take."""
    width_k, width_v = _widths(shape)
    rows = ROWS * config.integer("consumers")
    queries = rows * width_k * config.integer("query_slots")
    columns = config.integer("slots") * config.integer("BLOCK_K") * (width_k + width_v) + queries
    if config["results"] == "own":
        columns += rows * width_v
    return columns * ITEM_BYTES[shape.dtype] + BARRIER_BYTES


@lru_cache(maxsize=1024)
def default(shape: AttentionShape, device: Device) -> Config:
    """Return the usual schedule, or the tiles and their order by which the busiest multiprocessor is done much sooner.

    Short sequences may leave most rows of the usual tiles empty, and one program may get all long tiles of their order:
    31 x 64 heads of 128 over 129 tokens took 2.1 times as long as with tiles of 192 rows, 5 x 24 over 1386 tokens 1.50
    times as long as with one program less (NVIDIA H200, 2026-11-27; ``python -m benchmarks.served_regret --drawn 60``).
    Where narrow windows hide keys, with softcap over few keys, and of few tiles of narrow heads estimates err too much.
    """
    usual = usual_schedule(shape, device)
    times = makespan.TIMES.get(makespan.class_of(shape), {})
    gain = _least_gain(shape)
    if gain is None or _tile(usual) not in times or _has_few_narrow_tiles(shape, device):
        return usual
    end = _estimate(usual, shape, device, times)
    found, soonest = _soonest(usual, _tile(usual), shape, device)
    if soonest >= (1.0 - gain) * end:
        found = usual
    least = (1.0 - gain) * min(end, soonest)  # of other tiles
    for tile, of_tile in times.items():
        if tile != _tile(usual) and makespan.lower_bound(shape, tile, of_tile, device.sm_count) < least:
            rival, soonest = _soonest(usual, tile, shape, device)
            if soonest < least:
                found, least = rival, soonest
    return found


def _soonest(usual: Config, tile: tuple[int, int], shape: AttentionShape, device: Device) -> tuple[Config, float]:
    """Return the first of the orders of a tile that end as soon as any, and the estimate of the soonest.

    Of a tile that is not valid that is the usual schedule, and never.
    """
    times = makespan.TIMES[makespan.class_of(shape)]
    ends = {rival: _estimate(rival, shape, device, times) for rival in _rivals(usual, tile, shape, device)}
    soonest = min(ends.values(), default=math.inf)
    return next((rival for rival, end in ends.items() if NEARLY * end <= soonest), usual), soonest


def _least_gain(shape: AttentionShape) -> float | None:
    """Return the part of its time that another schedule must gain over the usual, or None where estimates err more."""
    width = max(_widths(shape))
    if bounds.window_hides(shape):
        is_recorded = shape.causal and 64 < width <= 128 and not shape.softcap
        return LEAST_GAIN_WINDOW if is_recorded and (shape.window or 0) >= NARROWEST_ESTIMATED else None
    if shape.softcap:
        return LEAST_GAIN_SOFTCAP.get(width) if shape.seq_kv > FEW_KEYS else None
    return LEAST_GAIN


def _tile(config: Config) -> tuple[int, int]:
    return config.integer("consumers"), config.integer("BLOCK_K")


def _estimate(config: Config, shape: AttentionShape, device: Device, times: Mapping[tuple[int, int], Times]) -> float:
    return makespan.estimate(shape, schedule_of(config, device), times[_tile(config)], device.sm_count)


def _rivals(usual: Config, tile: tuple[int, int], shape: AttentionShape, device: Device) -> Iterator[Config]:
    """Yield the usual schedule with another tile in each order; nothing if that tile is not valid."""
    consumers, block_k = tile
    workers, section, row_order = ALIKE_ORDERS[0]
    order: dict[str, Value] = {"workers": workers, "section": section, "row_order": row_order}
    slots = _slots(shape, consumers, block_k)
    config = Config({**usual, "consumers": consumers, "BLOCK_K": block_k, "slots": slots, "results": "own", **order})
    if consumers not in (2, usual["consumers"]):
        config = Config({**config, "ping_pong": "off"})
    if shared_bytes(config, shape) > device.shared_memory_bytes:
        config = Config({**config, "results": "queries"})
    if reject(config, shape, device) is None:
        for workers, section, row_order in ORDERS if _tiles_differ(shape, consumers) else ALIKE_ORDERS:
            if section == 1 or _section_bytes(section, shape) <= SECTION_BYTES:
                yield Config({**config, "workers": workers, "section": section, "row_order": row_order})


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
    width_k, width_v = _widths(shape)
    widest = max(width_k, width_v)
    seen = min(shape.seq_kv, shape.window or shape.seq_kv)
    is_long, is_longer = seen * widest >= LONG, seen * widest > LONG
    most = 3 if widest <= 64 and (is_long or not shape.causal) else 2
    consumers = min(most, math.ceil(shape.seq_q / ROWS))
    is_ordered = shape.causal and _tiles_differ(shape, consumers)
    is_capped = bool(shape.softcap) and widest > 64  # 1.04 to 1.40 times as long by 128 keys (H200, 2026-11-27)
    sees_few = shape.causal and 64 < widest <= 128 and shape.seq_kv <= FEW_KEYS
    is_short = width_k > 192 or width_v > 128 or seen <= bounds.NARROW_WINDOW or sees_few or is_capped
    block_k = 64 if is_short else 128
    # Turns, and the queries of two tiles, hide what a tile waits for: of long ones that is little.
    takes_turns = not (is_longer if shape.causal else is_long)
    is_small = widest <= 64 and most == 2
    config = Config(
        consumers=consumers,
        BLOCK_K=block_k,
        slots=_slots(shape, consumers, block_k),
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
    """Return 4 where short blocks of heads of 128 fit so often, else 2.

    There they take 0.96 times as long as two, of 12 shapes of up to 512 tokens (NVIDIA H200, 2026-11-28;
    ``python -m benchmarks.served_regret --drawn 60 --seed 3``).
    """
    is_deep = (consumers, block_k) == (2, 64) and _widths(shape) == (128, 128) and not shape.softcap
    return 4 if is_deep else 2


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
    seen = min(shape.seq_kv, shape.window or shape.seq_kv)
    return (
        shape.causal
        and max(_widths(shape)) <= 64
        and seen <= FEW_KEYS
        and shape.seq_q > 2 * ROWS
        and tiles < 2 * device.sm_count
    )


IMPLEMENTATION: Final = Implementation(
    name="gluon_hopper",
    operation="flash_attention",
    space=Space(PARAMETERS, reject, default),
    kernel="autotune.kernels.flash_attention.gluon_hopper:KERNEL",
    sources=(
        *kernel_files("flash_attention/gluon_hopper", "forward", "launch", "rings", "schedule", "turns", "weights"),
        *kernel_files("", "gluon"),
        Path(__file__).with_name("warp_groups.py"),
        *SHARED,
    ),
    entry=("launch",),
    supports=supports,
    can_interpret=False,
)
