"""The features that rank candidates of dense attention on Hopper: numbers of a shape on a device with each candidate.

Sizes are logarithms to base 2, so that a network of few layers can multiply and divide them. Most follow from how a
GPU works: how many tiles a shape leaves to each multiprocessor, and when the busiest one is done.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.search_spaces.flash_attention import makespan
from autotune.search_spaces.flash_attention.gluon_hopper_bounds import keys_seen, shared_bytes, supports, widths
from autotune.search_spaces.flash_attention.makespan import LAUNCH, TileSchedule, schedule_of
from autotune.search_spaces.flash_attention.tile_work import MULTIPLIED, rough_tiles
from autotune.search_spaces.flash_attention.usual_schedule import usual_schedule
from autotune.shape import AttentionShape
from autotune.space import Config, Value
from autotune.trial import Candidate

GLUON, TRITON = "gluon_hopper", "triton"

# The larger memory of GPUs of one architecture is the faster one: 81,559 MiB with 3.35 TB/s, 143,771 with 4.8 (the data
# sheets of NVIDIA's H100 SXM and H200).
H100_MIB: Final = 81559
L2_BYTES: Final = 50e6  # NVIDIA, "H100 Tensor Core GPU Architecture"
REGISTERS: Final = 65536  # of an SM, as its warps (CUDA C++ Programming Guide, table of compute capabilities)
MAX_WARPS: Final = 64
SHARED_BYTES: Final = 228 * 1024
# Rough, as the network weighs what follows from them.
TRITON_SLOWER: Final = 1.5  # times that a tile of ``triton`` takes of that of ``gluon_hopper``
WARP_REGISTERS: Final = 32 * 40  # of a warp, beside what a tile keeps

ESTIMATE: Final = 16  # the place of "end over products"

PARAMETERS: Final[Mapping[str, Mapping[str, tuple[Value, ...]]]] = {
    GLUON: {
        "consumers": (1, 2, 3),
        "BLOCK_K": (64, 128),
        "slots": (2, 3, 4),
        "query_slots": (1, 2),
        "ping_pong": ("off", "issue"),
        "values": ("late", "early"),
        "results": ("own", "queries"),
        "workers": ("tiles", "sm", "sm-1", "sm-3", "2sm"),
        "section": (1, 4, 16),
        "row_order": ("natural", "reversed", "alternating"),
    },
    TRITON: {
        "BLOCK_Q": (16, 32, 64, 128, 256),
        "BLOCK_K": (16, 32, 64, 128, 256),
        "num_warps": (1, 2, 4, 8, 16),
        "num_stages": (1, 2, 3, 4, 5),
        "loads": ("pointer", "descriptor"),
    },
}

Numbers = NDArray[np.float64]


class _Work(NamedTuple):
    """The tiles that a candidate makes of a shape, in microseconds, and how a device shares them."""

    rows: int
    block_k: int
    tiles: Numbers  # of a head
    programs: int
    resident: int  # programs that a multiprocessor holds at once
    shared: int  # bytes of a program
    section: int  # heads whose tiles of the same rows come one after the other
    end: float
    unusual: int  # parameters that are not the usual schedule's


def features(shape: AttentionShape, device: Device, candidates: Sequence[Candidate]) -> Numbers:
    """Return a row for each candidate, in the order of ``named_features``."""
    of_shape = _of_shape(shape, device)
    usual = _usual_schedule(shape, device)
    ends: dict[TileSchedule, float] = {}
    rows = [
        [*of_shape.values(), *_of_work(shape, device, _work(shape, device, each, usual, ends)).values()]
        for each in candidates
    ]
    return np.concatenate((np.array(rows, dtype=np.float64), _flags(tuple(candidates))), axis=1)


def named_features(shape: AttentionShape, device: Device, candidate: Candidate) -> dict[str, float]:
    """Return each feature of one candidate by its name."""
    of_work = _of_work(shape, device, _work(shape, device, candidate, _usual_schedule(shape, device), {}))
    flags = {
        f"{name} {parameter} {value}": float(candidate.implementation == name and candidate.config[parameter] == value)
        for name, parameter, value in _flag_names()
    }
    return _of_shape(shape, device) | of_work | {"gluon": float(candidate.implementation == GLUON)} | flags


def _flag_names() -> Iterator[tuple[str, str, Value]]:
    for name, parameters in PARAMETERS.items():
        for parameter, values in parameters.items():
            yield from ((name, parameter, value) for value in values)


@lru_cache(maxsize=4)  # the candidates that ship are the same for all shapes
def _flags(candidates: Sequence[Candidate]) -> Numbers:
    """Return 1 where a candidate is of ``gluon_hopper``, and where its parameter has a value."""

    def of_one(candidate: Candidate) -> Iterable[bool]:
        yield candidate.implementation == GLUON
        for name, parameter, value in _flag_names():
            yield candidate.implementation == name and candidate.config[parameter] == value

    return np.array([list(of_one(each)) for each in candidates], dtype=np.float64)


def _of_shape(shape: AttentionShape, device: Device) -> dict[str, float]:
    heads, (width_k, width_v) = shape.batch * shape.heads, widths(shape)
    return {
        "products": math.log2(1.0 + _products(shape, device)),
        "heads": math.log2(heads),
        "heads of an SM": math.log2(heads / device.sm_count),
        "group": math.log2(shape.group),
        "queries": math.log2(shape.seq_q),
        "keys": math.log2(shape.seq_kv),
        "keys of a row": math.log2(keys_seen(shape)),
        "causal": float(shape.causal),
        "window": float(shape.window is not None),
        "softcap": float(shape.softcap),
        "width of keys": math.log2(width_k),
        "width of values": math.log2(width_v),
        "padding": math.log2((width_k + width_v) / (shape.head_dim + shape.head_dim_v)),
        "memory": math.log2(device.memory_mib / H100_MIB),
        "bytes of all keys": math.log2(shape.batch * shape.kv_heads * _key_bytes(shape) / L2_BYTES),
        "bytes of the keys of a head": math.log2(_key_bytes(shape) / L2_BYTES),
    }


def _products(shape: AttentionShape, device: Device) -> float:
    """Return the microseconds of all matrix products of scores that are seen, shared evenly."""
    seen = keys_seen(shape)
    lacking = max(0, seen - 1 - (shape.seq_kv - shape.seq_q)) if shape.causal else 0  # keys of the first row
    rows = min(lacking, shape.seq_q)  # each of which lacks one key less
    pairs = shape.seq_q * seen - rows * lacking + rows * (rows - 1) / 2
    return 2 * pairs * shape.batch * shape.heads * sum(widths(shape)) / MULTIPLIED / device.sm_count


def _key_bytes(shape: AttentionShape) -> int:
    """Return the bytes of the keys and values of a head."""
    return shape.seq_kv * (shape.head_dim + shape.head_dim_v) * ITEM_BYTES[shape.dtype]


def _usual_schedule(shape: AttentionShape, device: Device) -> Config:
    """Return the usual schedule of ``gluon_hopper``, with nothing in it where that does not support the shape."""
    return usual_schedule(shape, device) if supports(shape, device) is None else Config()


def _work(
    shape: AttentionShape, device: Device, candidate: Candidate, usual: Config, ends: dict[TileSchedule, float]
) -> _Work:
    """Return the tiles of a candidate; ``ends`` keeps when schedules end, which many candidates share."""
    if candidate.implementation == GLUON:
        return _gluon_work(shape, device, candidate.config, usual, ends)
    return _triton_work(shape, device, candidate.config)


def _gluon_work(
    shape: AttentionShape, device: Device, config: Config, usual: Config, ends: dict[TileSchedule, float]
) -> _Work:
    schedule = schedule_of(config, device)
    rows, block_k = schedule.rows, schedule.block_k
    if schedule not in ends:
        ends[schedule] = makespan.estimate(shape, schedule, device.sm_count)
    tiles = rough_tiles(shape, rows, block_k)
    programs = schedule.workers or len(tiles) * shape.batch * shape.heads
    shared = shared_bytes(config, shape)
    unusual = sum(config[name] != value for name, value in usual.items())
    return _Work(rows, block_k, tiles, programs, 1, shared, schedule.section, ends[schedule], unusual)


def _triton_work(shape: AttentionShape, device: Device, config: Config) -> _Work:
    """Programs take one tile each, and the next begins where one has ended: that is no later than an even share and the
    longest one after it (Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM Journal on Applied Mathematics 17,
    1969)."""
    rows, block_k, warps = (config.integer(name) for name in ("BLOCK_Q", "BLOCK_K", "num_warps"))
    width_k, width_v = widths(shape)
    tiles = TRITON_SLOWER * rough_tiles(shape, rows, block_k)
    programs = len(tiles) * shape.batch * shape.heads
    stages = config.integer("num_stages")
    shared = (rows * width_k + stages * block_k * (width_k + width_v)) * ITEM_BYTES[shape.dtype]
    registers = rows * (width_v + block_k) + rows * width_k // 2 + warps * WARP_REGISTERS
    resident = max(1, min(SHARED_BYTES // shared, MAX_WARPS // warps, REGISTERS // registers))
    evenly = float(tiles.sum()) * shape.batch * shape.heads / device.sm_count
    return _Work(rows, block_k, tiles, programs, resident, shared, 1, LAUNCH + evenly + float(tiles.max()), 0)


def _of_work(shape: AttentionShape, device: Device, work: _Work) -> dict[str, float]:
    heads = shape.batch * shape.heads
    products, seen = LAUNCH + _products(shape, device), keys_seen(shape)
    evenly, longest = float(work.tiles.sum()) * heads / device.sm_count, float(work.tiles.max())
    of_sm = len(work.tiles) * heads / device.sm_count
    rounds, of_program = of_sm / work.resident, len(work.tiles) * heads / work.programs
    at_once = max(1.0, min(work.programs, device.sm_count) / len(work.tiles))  # heads
    section = math.ceil(work.section / shape.group) * _key_bytes(shape)
    logarithms = {
        "end over products": work.end / products,
        "even share over products": (LAUNCH + evenly) / products,
        "longest tile over products": (LAUNCH + longest) / products,
        "longest tile over even share": longest / evenly,
        "end": work.end,
        "tiles of an SM": of_sm,
        "rounds": rounds,
        "unevenness of an SM": math.ceil(of_sm) / of_sm,
        "unevenness of rounds": math.ceil(rounds) / rounds,
        "tiles of a program": of_program,
        "unevenness of programs": math.ceil(of_program) / of_program,
        "rows": work.rows,
        "BLOCK_K": work.block_k,
        "tiles of a head": len(work.tiles),
        "rows with empty ones": len(work.tiles) * work.rows / shape.seq_q,
        "keys with empty ones": math.ceil(seen / work.block_k) * work.block_k / seen,
        "blocks of a row": seen / work.block_k,
        "resident": work.resident,
        "shared bytes": work.shared,
        "bytes of the keys of a section": section / L2_BYTES,
        "bytes of keys at once": at_once * _key_bytes(shape) / L2_BYTES,
    }
    others = {"unusual parameters": float(work.unusual), "usual": float(work.unusual == 0)}
    return {name: math.log2(value) for name, value in logarithms.items()} | others
