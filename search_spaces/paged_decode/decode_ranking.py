"""The default of paged decode as recordings have it: candidates in the order of networks that were fitted to trials.

``python -m benchmarks.fit_decode`` fits them to what ships in ``results/``; docs/dispatch.md has what they lose.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.search_spaces import bounds
from autotune.search_spaces.networks import Networks, name_of, networks_in, read_arrays
from autotune.search_spaces.paged_decode.decode_features import ConfigColumns, features
from autotune.search_spaces.paged_decode.decode_merging import MAX_SPLITS_LAST, MIN_SPLITS_HALF, PROGRAMS_PER_SM, SPLITS
from autotune.search_spaces.paged_decode.decode_sizes import is_wide
from autotune.shape import PagedShape
from autotune.space import Config

NETWORKS: Final = "decode_networks.npz"
IMPLEMENTATION: Final = "triton"
KEPT: Final = 4096  # choices
Reject = Callable[[Config, PagedShape, Device], str | None]

# Of a candidate: what is no amount of work. The last two are 1 for ``schedule`` flat, and for ``COMBINE`` last.
TILE: Final = ("BLOCK_ROWS", "HEADS", "BLOCK_K", "num_warps", "num_stages", "is_flat", "is_last")


def _arrays() -> Mapping[str, NDArray[Any]]:
    return read_arrays(__package__, NETWORKS)


@cache
def read_networks() -> Networks:
    """Return what ships; nothing is ranked where that is gone or damaged."""
    return networks_in(_arrays())


def read_tiles() -> NDArray[np.int64]:
    """Return the tiles that candidates have: a row of ``TILE`` each."""
    return _arrays()["tiles"]


def is_ranked(shape: PagedShape, device: Device) -> bool:
    """Return True for decodes much as recorded: one query a sequence, in 16 bits over a cache of the same type or of
    e4m3, on Hopper. Other layouts, sizes of pages and models of GPU than the recorded ones are taken to be alike."""
    return (
        shape.seq_q == 1
        and ITEM_BYTES[shape.dtype] == 2
        and shape.kv_dtype in (shape.dtype, "float8_e4m3fn")
        and not is_wide(shape)
        and device.has("wgmma")
        and bool(_arrays())
    )


def first_valid(shape: PagedShape, device: Device, reject: Reject) -> Config | None:
    """Return the best candidate that is valid; None where none is. It is kept, and that of recorded shapes ships."""
    if (choice := _recorded_choices().get(name_of(IMPLEMENTATION, shape, device))) is not None:
        config = config_of(choice, shape.dtype)
        if reject(config, shape, device) is None:
            return config
    return _first_valid(shape, device, device.memory_mib, reject)


@lru_cache(maxsize=KEPT)
def _first_valid(shape: PagedShape, device: Device, memory_mib: int, reject: Reject) -> Config | None:
    """Choose, for a device that has so much memory, of which its identity has but the step."""
    return next((config for config in ranked(shape, device) if reject(config, shape, device) is None), None)


@cache
def _recorded_choices() -> Mapping[str, list[int]]:
    """Return what is chosen for recorded shapes, of which tables have hundreds, each as ``choice_of`` writes it."""
    return dict(zip(_arrays()["recorded"].tolist(), _arrays()["chosen"].tolist(), strict=True))


def choice_of(config: Config) -> list[int]:
    """Return a candidate as numbers: of ``TILE``, its splits or programs, and 1 for partial results of 16 bits."""
    is_flat = config["schedule"] == "flat"
    return [
        *tile_of(config),
        config.integer("PROGRAMS_PER_SM" if is_flat else "NUM_SPLITS"),
        int(config["PARTIALS"] not in (None, "float32")),
    ]


def config_of(choice: Sequence[int], dtype: str) -> Config:
    """Return the candidate that ``choice_of`` wrote, for a shape of a dtype.

    Example:
        >>> config_of([16, 1, 64, 4, 3, 0, 1, 8, 1], "bfloat16")["PARTIALS"]
        'bfloat16'
    """
    *tile, amount, is_narrow = choice
    return _config(tile, amount, dtype if is_narrow else "float32")


def tile_of(config: Config) -> tuple[int, ...]:
    """Return what of a config is no amount of work, in the order of ``TILE``."""
    sizes = (config.integer(name) for name in TILE[:-2])
    return (*sizes, int(config["schedule"] == "flat"), int(config["COMBINE"] == "last"))


def forget() -> None:
    """Forget what was read and chosen, as after other networks were written."""
    for kept in (read_arrays, read_networks, candidates, _recorded_choices, _first_valid):
        kept.cache_clear()


def ranked(shape: PagedShape, device: Device) -> Iterator[Config]:
    """Yield the candidates for a shape, the best first; some may not be valid for it.

    Example:
        >>> from autotune.device import NVIDIA_H200
        >>> shape = PagedShape(batch=64, heads=32, kv_heads=8, max_context=8192, head_dim=128, page_size=16)
        >>> next(ranked(shape, NVIDIA_H200))["schedule"]
        'split'
    """
    listed, columns = candidates(shape.dtype)
    (places,) = np.nonzero(_may_suit(columns, shape))
    given = features(shape, device, columns.at(places))
    for place in places[np.argsort(read_networks().rank(given), kind="stable")]:
        yield listed[place]


def _may_suit(columns: ConfigColumns, shape: PagedShape) -> NDArray[np.bool_]:
    """Return which candidates have heads, rows and splits that a shape has: most that have not are passed over so."""
    rows = columns.heads * shape.group
    suits: NDArray[np.bool_] = (
        (shape.kv_heads % columns.heads == 0)
        & ((columns.heads == 1) | (rows <= bounds.MIN_BLOCK))
        & (columns.rows < np.maximum(2 * rows, bounds.MIN_BLOCK + 1))
        & (columns.splits * columns.block_k < columns.heads * shape.max_context + columns.block_k)
    )
    return suits


@lru_cache(maxsize=8)
def candidates(dtype: str) -> tuple[tuple[Config, ...], ConfigColumns]:
    """List every recorded tile with every number of splits, or of programs, and type of partial results."""
    listed = tuple(config for tile in read_tiles().tolist() for config in _with_amounts(tile, dtype))
    return listed, ConfigColumns.of(listed)


def _with_amounts(tile: Sequence[int], dtype: str) -> Iterator[Config]:
    *_, is_flat, is_last = tile
    if is_flat:
        yield from (_config(tile, each, "float32") for each in PROGRAMS_PER_SM)
        return
    for splits in (each for each in SPLITS if 1 < each <= MAX_SPLITS_LAST) if is_last else SPLITS:
        for partials in ("float32", dtype) if splits >= MIN_SPLITS_HALF else ("float32",):
            yield _config(tile, splits, partials)


def _config(tile: Sequence[int], amount: int, partials: str) -> Config:
    """Return a tile with a number of splits, or of programs, which leave no partial results of a type of their own."""
    rows, heads, block_k, warps, stages, is_flat, is_last = tile
    return Config(
        schedule="flat" if is_flat else "split",
        BLOCK_ROWS=rows,
        HEADS=heads,
        BLOCK_K=block_k,
        NUM_SPLITS=None if is_flat else amount,
        PROGRAMS_PER_SM=amount if is_flat else None,
        COMBINE=None if is_flat else "last" if is_last else "kernel",
        PARTIALS=None if is_flat else partials,
        num_warps=warps,
        num_stages=stages,
        **dict.fromkeys(parameter.name for parameter in bounds.WAVE_HINTS),  # which recorded GPUs lack
    )
