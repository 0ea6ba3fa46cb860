"""The usual schedule of flash attention in Gluon for Hopper, a rule.

Networks that rank candidates know how far each agrees with it, and it is the default where they rank nothing.
"""

import math
from typing import Final

from autotune.device import Device
from autotune.errors import InvalidShapeError
from autotune.search_spaces import bounds
from autotune.search_spaces.flash_attention.gluon_hopper_bounds import (
    FEW_KEYS,
    keys_seen,
    shared_bytes,
    supports,
    tiles_differ,
    widths,
)
from autotune.search_spaces.flash_attention.warp_groups import ROWS
from autotune.shape import AttentionShape
from autotune.space import Config, Value

LONG: Final = 2**19  # elements of the keys that a row sees: of more, the order of tiles matters more than turns


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
