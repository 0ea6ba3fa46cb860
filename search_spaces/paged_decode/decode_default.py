"""The default of paged decode by the sizes of a batch alone: of several queries, float32, wide heads, and elsewhere.

That is wherever ``decode_ranking`` does not rank: on other architectures than Hopper above all.

A decode reads keys and values once and hardly computes: its time is that of reading them, while every SM has enough
bytes in flight, and what programs take to begin and partial results to be merged. Constants were chosen by the grids
and the winners of the NVIDIA H200 (2026-11-21 to 2026-11-24, 132 problems of named models, of 102 of which 2 to 40
configs were tried) and of the NVIDIA H100 (2026-11-26, 102 problems), whose trials ship in ``results/``.
"""

import math
from typing import Final

from autotune.device import Device
from autotune.rounding import power_of_two
from autotune.search_spaces import bounds
from autotune.search_spaces.paged_decode.decode_merging import most_splits, partials_type, worth_merging
from autotune.search_spaces.paged_decode.decode_sizes import (
    BUSY,
    MAX_BLOCK_ROWS,
    NARROW,
    PROGRAMS,
    DecodeSizes,
    is_wide,
)
from autotune.search_spaces.paged_decode.decode_work import idle_work
from autotune.shape import PagedShape
from autotune.space import Config, Value

RAGGED_PROGRAMS: Final = 3  # an SM, in the mean of the time: of short sequences they end early
# Of many rows, whose weights take registers: 5 problems of 71 heads on one of 64 (H200, 2026-11-28), 0.86 to 0.97.
MANY_ROWS_BLOCK_K: Final = 64
# One program an SM has as much in flight with a tile twice as large, and reads longer pieces of fewer sequences.
LARGE_TILE_BYTES: Final = 65536  # of keys and values
LARGE_TILE_WARPS: Final = 8
MAX_LARGE_BLOCK_K: Final = 256
MAX_HEADS: Final = 8
SLIGHTLY_UNEVEN: Final = 0.05  # of the time: no reason for fewer KV heads
MIN_TILES: Final = 2  # of a split: they fill its pipeline
# Of a whole sequence, in the mean, and of a ragged one of narrow heads (2 problems of both GPUs: 0.87 to 0.95).
MIN_TILES_WHOLE, MIN_TILES_NARROW = 4, 2
# Where sequences are of different lengths, equal shares of a list of tiles take less time above so many tiles of the
# longest whole sequence, and from so many keys of one that is split.
LONG_WHOLE, LONG_SPLIT = 16, 8192


def preferred(shape: PagedShape, device: Device) -> list[Config]:
    """List what suits a shape on a device, the best first; the last is valid wherever the shape is supported.

    Sequences of one length are split until each SM has two programs, if merging does not take longer; where there is
    one for each SM without, they are not. Neither are sequences of different lengths, where SMs have one in the mean.
    But where the longest of these is long, where there are more sequences than SMs, or where splits enough for the SMs
    would leave more bytes of partial results than they read, programs take equal shares of the list of all tiles.
    """
    return [config for config in _candidates(_Plan(shape, device)) if idle_work(config, shape, device) is None]


def _candidates(plan: "_Plan") -> list[Config]:
    if plan.reads.evenness == 1.0:
        return [plan.whole_heads() if plan.takes_large_tiles() else plan.split(), *plan.flat()]
    if plan.busy >= BUSY and plan.rows == bounds.MIN_BLOCK:
        config = plan.whole()
        tiles = plan.reads.longest * config.integer("HEADS") / config.integer("BLOCK_K")
        is_long = tiles > LONG_WHOLE
    else:
        config = plan.split()
        is_long = plan.reads.longest >= LONG_SPLIT or plan.sequences > plan.device.sm_count
    return plan.flat() if is_long else [config, *plan.flat()]


class _Plan(DecodeSizes):
    """The configs that follow from the sizes of a shape on a device."""

    def whole_heads(self) -> Config:
        """Return a program a sequence: one an SM of a large tile, where one or two KV heads each leave as many; usual
        tiles, where an SM holds all of its programs at once; else large ones, one after the other."""
        if self.is_broad:  # their accumulators leave eight warps no time to wait
            return self.whole()
        few = [heads for heads in self.heads_of(2) if BUSY <= self.busy / heads <= 1.0]
        resident = self.room // (2 * self.block_k * self.key_bytes + self.bytes_beside(self.block_k))
        if not few and (held := [heads for heads in self.heads_of(2) if 1.0 < self.busy / heads <= resident]):
            return self._whole(self._evenest(held), self.block_k)
        block_k = min(MAX_LARGE_BLOCK_K, power_of_two(-(-LARGE_TILE_BYTES // self.key_bytes)))
        many = few or [heads for heads in self.heads_of(MAX_HEADS) if self.busy / heads >= BUSY]
        config = self._whole(self._evenest(many), block_k, LARGE_TILE_WARPS)
        if config.integer("BLOCK_K") * self.key_bytes >= LARGE_TILE_BYTES:
            return config
        # Little is read: two programs an SM.
        several = [heads for heads in self.heads_of(MAX_HEADS) if self.busy / heads >= PROGRAMS * BUSY]
        return self._whole(self._evenest(several or [1]), block_k)

    def _evenest(self, choices: list[int]) -> int:
        """Return the KV heads of a program with which SMs have about as many programs each; of equals the most."""
        shares = {heads: self.busy / heads / math.ceil(self.busy / heads) for heads in choices}
        return max(heads for heads in choices if shares[heads] >= max(shares.values()) - SLIGHTLY_UNEVEN)

    def whole(self) -> Config:
        """Return a program a sequence and KV head, two of narrow ones: the more, the more evenly they end."""
        return self._whole(self.heads if self.width_v <= NARROW else 1, self.block_k)

    def split(self) -> Config:
        """Return splits, of two KV heads where as many are worth merging and have tiles enough; none of one tile."""
        is_even, longest = self.reads.evenness == 1.0, self.reads.longest
        if longest <= self.block_k:
            return self._split(1, self._within_context(self.block_k, 1), 1)
        block_k = self.block_k
        if self.rows == MAX_BLOCK_ROWS and self.item_bytes == 2:
            block_k = min(block_k, MANY_ROWS_BLOCK_K)
        wanted = (PROGRAMS if is_even else RAGGED_PROGRAMS) / self.busy
        worth = worth_merging(self.shape, self.device, self.sequences)
        several = self.heads * wanted
        if several <= worth and longest / several >= MIN_TILES * block_k / self.heads:
            splits = most_splits(self.shape, several)
            return self._split(self.heads, self._within_context(block_k, self.heads), splits)
        splits = most_splits(self.shape, min(wanted, worth))
        keys = longest // splits // MIN_TILES if is_even else self.reads.mean // splits
        return self._split(1, self._cut(block_k, 1, keys), splits)

    def flat(self) -> list[Config]:
        """Return equal shares of the list of all tiles, two an SM, or one where there are not tiles enough."""
        block_k = self._cut(self.block_k, self.heads, self.reads.mean // MIN_TILES_WHOLE)
        return [self._config(self.heads, block_k, schedule="flat", PROGRAMS_PER_SM=each) for each in (PROGRAMS, 1)]

    def _cut(self, block_k: int, heads: int, tokens: int) -> int:
        """Return the keys of a tile that is no longer than so many tokens of its heads, nor than the context."""
        tokens = max(self.least_block_k, tokens)
        return self._within_context(min(block_k, heads * (power_of_two(tokens + 1) // 2)), heads)

    def _within_context(self, block_k: int, heads: int) -> int:
        """Return the keys of a tile that is no longer than the padded context of its heads."""
        return min(block_k, max(self.least_block_k, heads * power_of_two(self.shape.max_context)))

    def _whole(self, heads: int, block_k: int, warps: int = 4) -> Config:
        is_narrow = self.width_v <= NARROW and self.reads.evenness < 1.0
        least = MIN_TILES_NARROW if is_narrow else MIN_TILES_WHOLE
        block_k = self._cut(block_k, heads, self.reads.mean // least)
        return self._split(heads, block_k, 1, warps)

    def _split(self, heads: int, block_k: int, splits: int, warps: int = 4) -> Config:
        amounts: dict[str, Value] = {
            "NUM_SPLITS": splits,
            "COMBINE": "kernel",
            "PARTIALS": partials_type(self.shape, splits),
        }
        return self._config(heads, block_k, warps, schedule="split", **amounts)

    def _config(self, heads: int, block_k: int, warps: int = 4, **schedule: Value) -> Config:
        stages = (self.room - self.bytes_beside(block_k)) // (block_k * self.key_bytes) + 1
        return Config(
            schedule=schedule["schedule"],
            BLOCK_ROWS=self.rows,
            HEADS=heads,
            BLOCK_K=block_k,
            **{name: schedule.get(name) for name in ("NUM_SPLITS", "PROGRAMS_PER_SM", "COMBINE", "PARTIALS")},
            num_warps=8 if is_wide(self.shape) else warps,
            num_stages=max(2, min(3, stages)) if self.device.has("async_copies") else 1,
            **bounds.usual_wave_hints(self.device),
        )
