"""The time of a tile of queries, estimated: its own and one for each block of keys, more at the edge of a mask."""

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.search_spaces.flash_attention.warp_groups import part_widths
from autotune.shape import AttentionShape

# Queries of the longest sequence that is estimated, in time that grows with it: eight times the longest recorded.
LONGEST: Final = 2**18


class TileTimes(NamedTuple):
    """Microseconds that a multiprocessor is busy with parts of a tile."""

    block: float  # of keys that every row of the tile sees
    edge: float  # in addition, of one that some rows do not see
    tile: float  # in addition to all of its blocks


def class_of(shape: AttentionShape) -> tuple[int, int, bool]:
    """Return the columns of keys and of values of a tile, and True with softcap: what rough times depend on."""
    parts, width_k, width_v = part_widths(shape.head_dim, shape.head_dim_v)
    return parts * width_k, width_v, bool(shape.softcap)


def tile_times(shape: AttentionShape, rows: int, block: int, times: TileTimes) -> NDArray[np.float64]:
    """Return the time of each tile of a head, from its first rows to its last.

    Args:
        rows: of queries of a tile.
        block: keys of a block.
    """
    return _tile_times(shape.seq_q, shape.seq_kv, shape.causal, shape.window, rows, block, times)


@lru_cache(maxsize=1024)
def _tile_times(
    seq_q: int, seq_kv: int, causal: bool, window: int | None, rows: int, block: int, times: TileTimes
) -> NDArray[np.float64]:
    first = np.arange(0, seq_q, rows)
    last = np.minimum(first + rows, seq_q) - 1

    def key_at(row: NDArray[np.int64], ahead: int) -> NDArray[np.int64]:
        return np.clip(row + (seq_kv - seq_q + ahead), 0, seq_kv)

    begin, end = np.zeros_like(first), np.full_like(first, seq_kv)
    reach = 1 if causal else window  # how far ahead a row sees; None: to the end
    # The keys that some row sees, from ``low`` to ``high``, and those that every row does.
    low, whole_low = (begin, begin) if window is None else (key_at(first, 1 - window), key_at(last, 1 - window))
    high, whole_high = (end, end) if reach is None else (key_at(last, reach), key_at(first, reach))
    blocks = np.maximum(1, -(-high // block) - low // block)
    whole = np.maximum(0, whole_high // block - -(-whole_low // block))
    found: NDArray[np.float64] = times.tile + blocks * times.block + (blocks - whole) * times.edge
    found.flags.writeable = False  # it is kept
    return found
