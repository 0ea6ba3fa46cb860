"""Constants of the binaries of paged decode, in groups."""

from typing import NamedTuple


class Tile(NamedTuple):
    """The query heads of one KV head or of several, and the few queries of a sequence, are rows of one tile.

    Row ``(h * queries + i) * group + g`` is query i of the head g in the group of KV head h; ``used_rows`` of them need
    one block of ``rows`` or several. A tile has ``tokens`` keys of each of its ``heads`` KV heads.
    """

    queries: int
    group: int
    heads: int
    used_rows: int
    rows: int
    tokens: int


class Features(NamedTuple):
    """What a binary computes, and how.

    ``token_scales``: keys and values have one scale a slot and head. ``packed``: they are read in words of two bytes.
    ``early``: it is launched before the kernel that it waits for has ended.
    """

    window: bool
    softcap: bool
    precise: bool
    token_scales: bool
    packed: bool
    early: bool


class Shares(NamedTuple):
    """Splits of a sequence, 0 under the schedule ``flat``, and how a program merges their partial results.

    It merges the first ``rows`` of a block, ``at_once`` partial results at a time.
    """

    splits: int
    rows: int
    at_once: int
