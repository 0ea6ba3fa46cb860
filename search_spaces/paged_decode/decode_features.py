"""The features that rank configs of paged decode: numbers of a shape on a device with each of several configs.

Sizes are logarithms to base 2, so that a network of few layers can multiply and divide them. Most follow from how a
GPU works: how many programs it holds at once, in how many rounds, and how many bytes are in flight meanwhile.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.device import Device
from autotune.search_spaces.paged_decode.decode_sizes import DecodeSizes
from autotune.search_spaces.paged_decode.decode_work import PARTIAL_BYTES
from autotune.shape import PagedShape
from autotune.space import Config

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

# The larger memory of GPUs of one architecture is the faster one: 81,559 MiB with 3.35 TB/s, 143,771 with 4.8 (the data
# sheets of NVIDIA's H100 SXM and H200).
H100_MIB: Final = 81559
MAX_WARPS: Final = 64  # of an SM (CUDA C++ Programming Guide, table of compute capabilities)
# Rough, as the network weighs what follows from them: of the memory of an H100 or H200, and microseconds.
BYTES_OF_SM: Final = 28_000.0  # that reach one in a microsecond while all read
LATENCY: Final = 0.8  # of a tile
PROGRAM: Final = 2.0  # until one has its first tile, and after its last
LAUNCH: Final = 3.0
MERGING: Final = 2.5  # a second kernel, beside what it reads

WARPS, STAGES, TILES, HEADS = (1, 2, 4, 8), (2, 3, 4, 6), (16, 32, 64, 128, 256), (1, 2, 4, 8)


class ConfigColumns(NamedTuple):
    """The parameters of configs, an entry each; 0 for one that a config lacks."""

    rows: Numbers
    heads: Numbers
    block_k: Numbers
    warps: Numbers
    stages: Numbers
    splits: Numbers
    programs_per_sm: Numbers
    is_last: Flags
    partial_bytes: Numbers

    @classmethod
    def of(cls, configs: Sequence[Config]) -> "ConfigColumns":
        """Return the columns of configs."""

        def column(name: str) -> Numbers:
            return np.array([config[name] or 0 for config in configs], dtype=np.float64)

        return cls(
            rows=column("BLOCK_ROWS"),
            heads=column("HEADS"),
            block_k=column("BLOCK_K"),
            warps=column("num_warps"),
            stages=column("num_stages"),
            splits=column("NUM_SPLITS"),
            programs_per_sm=column("PROGRAMS_PER_SM"),
            is_last=np.array([config["COMBINE"] == "last" for config in configs]),
            partial_bytes=np.array(
                [PARTIAL_BYTES[str(config["PARTIALS"] or "float32")] for config in configs], dtype=np.float64
            ),
        )

    def at(self, places: NDArray[np.int64]) -> "ConfigColumns":
        """Return the columns of some of the configs."""
        return self._replace(**{name: column[places] for name, column in self._asdict().items()})


def features(shape: PagedShape, device: Device, configs: ConfigColumns) -> Numbers:
    """Return a row for each config, in the order of ``named_features``."""
    return np.stack(list(named_features(shape, device, configs).values()), axis=1)


def named_features(shape: PagedShape, device: Device, configs: ConfigColumns) -> dict[str, Numbers]:
    """Return each feature by its name, an entry for each config."""
    sizes = DecodeSizes(shape, device)
    of_shape = {name: np.full(len(configs.rows), value, dtype=np.float64) for name, value in _of_shape(sizes).items()}
    return of_shape | _of_configs(sizes, configs)


def _of_shape(sizes: DecodeSizes) -> dict[str, float]:
    shape, reads = sizes.shape, sizes.reads
    return {
        "memory": math.log2(sizes.device.memory_mib / H100_MIB),
        "sequences of an SM": math.log2(sizes.sequences / sizes.device.sm_count),
        "evenness": reads.evenness,
        "mean context": math.log2(reads.mean),
        "longest context": math.log2(reads.longest),
        "bytes of a token": math.log2(sizes.key_bytes),
        "bytes of an item": sizes.item_bytes,
        "rows of a head": math.log2(sizes.rows_of_a_head),
        "page size": math.log2(shape.page_size),
        "width of keys": math.log2(sizes.width_k),
        "width of values": math.log2(sizes.width_v),
        "window": sizes.window_hides,
        "softcap": shape.softcap,
        "sinks": shape.sinks,
        "alibi": shape.alibi,
        "HND": shape.layout == "HND",
    }


def _of_configs(sizes: DecodeSizes, configs: ConfigColumns) -> dict[str, Numbers]:
    shape, device, reads = sizes.shape, sizes.device, sizes.reads
    rows, heads, block_k, warps, stages, splits, per_sm, is_last, partial_item = configs
    is_flat = splits == 0
    sequences = shape.batch * shape.kv_heads / heads * np.ceil(heads * sizes.rows_of_a_head / rows)
    programs = np.where(is_flat, per_sm * device.sm_count, sequences * splits)
    tokens = block_k / heads
    share = np.maximum(1, splits) * tokens  # of a sequence, where each split has one tile
    evenly = sequences * np.maximum(1, reads.mean / tokens) / programs
    mean = np.where(is_flat, evenly, np.maximum(1, reads.mean / share))
    longest = np.where(is_flat, np.ceil(evenly), np.ceil(reads.longest / share))
    tile_bytes = block_k * sizes.key_bytes
    shared = tile_bytes * (stages - 1) + rows * (sizes.width_k + block_k) * 2
    resident = np.maximum(1, np.minimum(sizes.room // shared, MAX_WARPS // warps))
    on_sm = programs / device.sm_count
    rounds = np.ceil(on_sm / resident)
    at_once = np.minimum(np.ceil(on_sm), resident)
    results = np.where(splits == 1, 0, np.where(is_flat, 2, splits))
    partial_bytes = results * shape.batch * shape.heads * shape.seq_q * sizes.width_v * partial_item
    # Microseconds, from here on.
    reading = shape.batch * shape.kv_heads * reads.mean * sizes.key_bytes / device.sm_count / BYTES_OF_SM
    tile = np.maximum(LATENCY / np.maximum(1, stages - 1), at_once * tile_bytes / BYTES_OF_SM)
    merging = np.where(results > 0, MERGING + 2 * partial_bytes / device.sm_count / BYTES_OF_SM, 0)
    of_longest, of_mean = (rounds * (PROGRAM + tiles * tile) for tiles in (longest, mean))
    total = LAUNCH + np.maximum(of_longest, reading) + merging
    total_evenly = LAUNCH + np.maximum(np.maximum(of_mean, reading), of_longest / rounds) + merging
    logarithms = {
        "heads": heads,
        "BLOCK_K": block_k,
        "splits": np.maximum(0.5, splits),
        "warps": warps,
        "rows": rows,
        "tokens": tokens,
        "programs of an SM": on_sm,
        "tiles in the mean": mean,
        "tiles of the longest": longest,
        "unevenness": longest / mean,
        "bytes of a tile": tile_bytes,
        "shared bytes": shared,
        "resident": resident,
        "bytes in flight": at_once * (stages - 1) * tile_bytes,
        "partial bytes": np.maximum(1, partial_bytes),
        "longest over reading": of_longest / reading,
        "mean over reading": of_mean / reading,
        "tile over its reading": tile * BYTES_OF_SM / (at_once * tile_bytes),
        "time over reading": total / (LAUNCH + reading),
        "even time over reading": total_evenly / (LAUNCH + reading),
        "merging": 1 + merging / (LAUNCH + reading),
    }
    others = {
        "flat": is_flat,
        "last": is_last,
        "narrow partials": partial_item < 4,
        "stages": stages,
        "rounds": rounds,
        "fullness": np.ceil(on_sm) / on_sm,
        "idle part": rounds - on_sm / resident,
        "filled rows": heads * sizes.rows_of_a_head / rows,
        "reading": np.full_like(rows, math.log2(reading)),
        **{f"{each} warps": warps == each for each in WARPS},
        **{f"{each} stages": stages == each for each in STAGES},
        **{f"tiles of {each}": block_k == each for each in TILES},
        **{f"{each} heads": heads == each for each in HEADS},
    }
    return {name: np.log2(each) for name, each in logarithms.items()} | others
