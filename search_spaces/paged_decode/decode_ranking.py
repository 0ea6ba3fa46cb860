"""The default of paged decode as recordings have it: candidates in the order of networks that were fitted to trials.

Each network estimates the logarithm of a config's time over that of the best for the same shape, up to an amount that
all configs of a shape share. Candidates are ranked by the mean of the estimates and what they differ by: of many
candidates the one that seems the fastest is likely one that is little known, and there the networks disagree. They were
fitted to what ships in ``results/`` (``python -m benchmarks.decode_ranking``); docs/dispatch.md has what they lose.
"""

from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES, KV_ITEM_BYTES
from autotune.search_spaces.paged_decode.decode_features import ConfigColumns, features
from autotune.search_spaces.paged_decode.decode_merging import SPLITS
from autotune.search_spaces.paged_decode.decode_sizes import is_wide
from autotune.shape import PagedShape
from autotune.space import Config

NETWORKS: Final = "decode_networks.npz"
PROGRAMS_PER_SM: Final = (1, 2, 3, 4, 6, 8)
HALF_SPLITS: Final = 8  # from which on partial results may have 16 bits
# Standard deviations of estimates. Of what networks chose, for 111 shapes of which more was recorded after they were
# fitted, 5 of 77 configs that were timed took more than 1.2 times the best by the mean alone, and 1 of 70 with two of
# them (NVIDIA H200, 2026-11-29).
CAUTION: Final = 2.0
AGREED: Final = 64  # the best by the mean, on whose mean all networks are made to agree
FIXED: Final = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")  # which recorded GPUs lack

Numbers = NDArray[np.floating[Any]]  # of single precision, which takes a third of the time of double


class Networks(NamedTuple):
    """Networks of two hidden layers, a slice each, and the range of what they were fitted to.

    ``tiles`` are the tiles that candidates have: a row of ``TILE`` each.
    """

    low: Numbers  # [features]
    high: Numbers
    mean: Numbers
    scale: Numbers
    first: Numbers  # [networks, features + 1, hidden]: the last row is added
    second: Numbers  # [networks, hidden + 1, hidden]
    last: Numbers  # [networks, hidden]
    tiles: NDArray[np.int64]  # [tiles, len(TILE)]

    def rank(self, given: Numbers) -> Numbers:
        """Return a number for each row of features of one shape's configs, the least for what is to be preferred."""
        scaled = (np.clip(given.astype(np.float32), self.low, self.high) - self.mean) / self.scale
        hidden = _swish(scaled @ self.first[:, :-1] + self.first[:, -1:])
        hidden = _swish(hidden @ self.second[:, :-1] + self.second[:, -1:])
        estimates: Numbers = (hidden @ self.last[:, :, None])[:, :, 0]
        best = np.argsort(estimates.mean(axis=0), kind="stable")[:AGREED]
        estimates -= estimates[:, best].mean(axis=1, keepdims=True)  # what a network adds to all of a shape
        ranks: Numbers = estimates.mean(axis=0) + CAUTION * estimates.std(axis=0)
        return ranks


TILE: Final = ("BLOCK_ROWS", "HEADS", "BLOCK_K", "num_warps", "num_stages", "is_flat", "is_last")


def _swish(values: Numbers) -> Numbers:
    """Return x * sigmoid(x) (Ramachandran, Zoph and Le, "Searching for Activation Functions", 2017)."""
    return values / (1.0 + np.exp(-values))


@cache
def read_networks() -> Networks:
    """Read what ships."""
    with (files(__package__) / NETWORKS).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return Networks(**{name: arrays[name] for name in Networks._fields})


def is_ranked(shape: PagedShape, device: Device) -> bool:
    """Return True for decodes as recorded: one query a sequence, 16 bits over caches of 16 or 8, on Hopper."""
    return (
        shape.seq_q == 1
        and ITEM_BYTES[shape.dtype] == 2
        and KV_ITEM_BYTES[shape.kv_dtype] <= 2
        and not is_wide(shape)
        and device.has("wgmma")
    )


def ranked(shape: PagedShape, device: Device) -> Iterator[Config]:
    """Yield the candidates for a shape, the best first; some may not be valid for it.

    Example:
        >>> from autotune.device import NVIDIA_H200
        >>> shape = PagedShape(batch=64, heads=32, kv_heads=8, max_context=8192, head_dim=128, page_size=16)
        >>> next(ranked(shape, NVIDIA_H200))["schedule"]
        'split'
    """
    listed, columns = candidates(shape.dtype)
    estimates = read_networks().rank(features(shape, device, columns))
    for place in np.argsort(estimates, kind="stable"):
        yield listed[place]


@lru_cache(maxsize=8)
def candidates(dtype: str) -> tuple[tuple[Config, ...], ConfigColumns]:
    """List every recorded tile with every number of splits, or of programs, and type of partial results."""
    listed = tuple(config for tile in read_networks().tiles.tolist() for config in _with_amounts(tile, dtype))
    return listed, ConfigColumns.of(listed)


def _with_amounts(tile: list[int], dtype: str) -> Iterator[Config]:
    rows, heads, block_k, warps, stages, is_flat, is_last = tile

    def config(schedule: str, splits: int | None, per_sm: int | None, partials: str | None) -> Config:
        return Config(
            schedule=schedule,
            BLOCK_ROWS=rows,
            HEADS=heads,
            BLOCK_K=block_k,
            NUM_SPLITS=splits,
            PROGRAMS_PER_SM=per_sm,
            COMBINE=None if is_flat else "last" if is_last else "kernel",
            PARTIALS=partials,
            num_warps=warps,
            num_stages=stages,
            **dict.fromkeys(FIXED),
        )

    if is_flat:
        yield from (config("flat", None, each, None) for each in PROGRAMS_PER_SM)
        return
    for splits in SPLITS:
        for partials in ("float32", dtype) if splits >= HALF_SPLITS else ("float32",):
            yield config("split", splits, None, partials)
