"""The time of a tile of queries, estimated: its own and one for each block of keys, more at the edge of a mask."""

import math
from functools import lru_cache
from typing import NamedTuple

from autotune.search_spaces.flash_attention.warp_groups import part_widths
from autotune.shape import AttentionShape


class TileTimes(NamedTuple):
    """Microseconds that a multiprocessor is busy with parts of a tile."""

    block: float  # of keys that every row of the tile sees
    edge: float  # in addition, of one that some rows do not see
    tile: float  # in addition to all of its blocks


def class_of(shape: AttentionShape) -> tuple[int, int, bool]:
    """Return the columns of keys and of values of a tile, and True with softcap: what times are fitted by."""
    parts, width_k, width_v = part_widths(shape.head_dim, shape.head_dim_v)
    return parts * width_k, width_v, bool(shape.softcap)


def tile_times(shape: AttentionShape, rows: int, block: int, times: TileTimes) -> tuple[float, ...]:
    """Return the time of each tile of a head, from its first rows to its last.

    Args:
        rows: of queries of a tile.
        block: keys of a block.
    """
    return _tile_times(shape.seq_q, shape.seq_kv, shape.causal, shape.window, rows, block, times)


@lru_cache(maxsize=1024)
def _tile_times(
    seq_q: int, seq_kv: int, causal: bool, window: int | None, rows: int, block: int, times: TileTimes
) -> tuple[float, ...]:
    def key_at(row: int, ahead: int) -> int:
        return min(max(row + seq_kv - seq_q + ahead, 0), seq_kv)

    found = []
    reach = 1 if causal else window  # how far ahead a row sees; None: to the end
    for first in range(0, seq_q, rows):
        last = min(first + rows, seq_q) - 1
        # The keys that some row sees, from ``low`` to ``high``, and those that every row does.
        low, whole_low = (0, 0) if window is None else (key_at(first, 1 - window), key_at(last, 1 - window))
        high, whole_high = (seq_kv, seq_kv) if reach is None else (key_at(last, reach), key_at(first, reach))
        blocks = max(1, math.ceil(high / block) - low // block)
        whole = max(0, whole_high // block - math.ceil(whole_low / block))
        found.append(times.tile + blocks * times.block + (blocks - whole) * times.edge)
    return tuple(found)
