"""The problems that the flash attention kernel is checked on: every pair of feature values, without triton or torch.

One list feeds both runs. Triton's interpreter computes bf16 wrongly, so it runs fp16 and fp32; a GPU runs these and
every fp16 case again in bf16.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from autotune.device import NVIDIA_H200
from autotune.dtypes import ITEM_BYTES
from autotune.search_spaces.bounds import padded_widths
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from tests.contract.covering import Factors, Pair, Row, Rules, cover

MIN_CASES: Final = 420
MAX_SHARED_BYTES: Final = 192 * 1024  # of Q, K and V tiles; an H200 has 227 KB
TILE_WORK: Final = 4000  # elements of a tile that cost the interpreter as much as the tile itself
MAX_WORK: Final = 500_000  # of a case, unless a pair of values asks for more; about a quarter of a second
MAX_LIVE_VALUES: Final = 64 * 1024  # of a block: the registers that an SM has
CANDIDATES: Final = 48  # rows that compete for each place in the list

LENGTHS: Final = (0, 1, 15, 17, 63, 65, 127, 129, 1000)

# What makes a binary of its own. A layout does so by the alignment of its pointers and strides.
PROGRAM: Final[Factors] = {
    "dtype": ("float16", "float32"),
    "head_dims": (
        *((width, width) for width in (8, 24, 40, 64, 72, 80, 96, 128, 160, 192, 256)),
        *((192, 128), (64, 128), (80, 24)),
    ),
    "tile": ((16, 16), (32, 64), (64, 32), (128, 64), (64, 256), (256, 32)),  # BLOCK_Q, BLOCK_K
    "num_stages": (1, 2, 3),
    "mask": ((False, None), (True, None), (False, 9), (True, 9), (False, 70), (True, 70)),  # causal, window
    "softcap": (None, 20.0),
    "lse": (False, True),
    "loads": ("pointer", "descriptor"),
    "layout": ("contiguous", "transposed", "packed", "expanded", "unaligned"),
}
# What the same binary meets.
PROBLEM: Final[Factors] = {
    "seq_q": LENGTHS,
    "seq_kv": LENGTHS,
    "batch": (1, 2),
    "heads": ((2, 2), (10, 2), (14, 2), (71, 1)),  # query heads, KV heads
    "scale": (None, 0.3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of the launcher: sizes, features, tile and how the tensors lie in memory."""

    dtype: str
    head_dim: int
    head_dim_v: int
    block_q: int
    block_k: int
    num_stages: int
    causal: bool
    window: int | None
    softcap: float | None
    scale: float | None
    lse: bool
    loads: str
    layout: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int

    @property
    def options(self) -> dict[str, Any]:
        """The config as the launcher takes it: 16 rows a warp."""
        return launch_options(self.block_q, self.block_k, self.num_stages, self.loads)

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        features = [
            f"{mask}-w{self.window}" if self.window else mask,
            *(["cap"] if self.softcap else []),
            *(["scale"] if self.scale else []),
            *(["lse"] if self.lse else []),
        ]
        return (
            f"{self.dtype}-d{self.head_dim}v{self.head_dim_v}-{self.seq_q}x{self.seq_kv}-b{self.batch}"
            f"h{self.heads}g{self.heads // self.kv_heads}-{'-'.join(features)}-{self.layout}-{self.loads}"
            f"-{self.block_q}x{self.block_k}s{self.num_stages}"
        )


@cache
def interpreted_cases() -> tuple[Case, ...]:
    """At least ``MIN_CASES`` cases in fp16 and fp32 that cover every pair of feature values that can meet."""
    programs = cover_with(PROGRAM, [{}])
    return tuple(case_of(row) for row in cover_with({**PROGRAM, **PROBLEM}, programs, at_least=MIN_CASES))


@cache
def slow_cases() -> frozenset[Case]:
    """The half that takes the interpreter longest."""
    cases = sorted(interpreted_cases(), key=lambda case: work(row_of(case)))
    return frozenset(cases[len(cases) // 2 :])


@cache
def gpu_cases() -> tuple[Case, ...]:
    """The cases that compile in seconds, and those of them in fp16 again in bf16."""
    cases = [case for case in interpreted_cases() if compiles_quickly(case)]
    return (*cases, *(replace(case, dtype="bfloat16") for case in cases if case.dtype == "float16"))


def compiles_quickly(case: Case) -> bool:
    """True if a thread runs few instructions: Triton unrolls dots in fp32, and loads what is not aligned one by one.

    Beyond these bounds a binary took 10 to 30 s (Triton 3.6, sm_90, one core, 2026-11-21).
    """
    block = case.block_k * max(padded_widths(case.head_dim, case.head_dim_v))
    return block <= (2048 if case.dtype == "float32" else 8192 if case.layout == "unaligned" else math.inf)


def case_of(row: Row) -> Case:
    """A row of the covering list as a case."""
    fields = {name: row[name] for name in row if name not in {"head_dims", "tile", "mask", "heads"}}
    head_dim, head_dim_v = row["head_dims"]
    block_q, block_k = row["tile"]
    causal, window = row["mask"]
    heads, kv_heads = row["heads"]
    return Case(
        **fields,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        block_q=block_q,
        block_k=block_k,
        causal=causal,
        window=window,
        heads=heads,
        kv_heads=kv_heads,
    )


def row_of(case: Case) -> Row:
    """The feature values of a case: the inverse of ``case_of``."""
    return {
        **{name: getattr(case, name) for name in {**PROGRAM, **PROBLEM} if hasattr(case, name)},
        "head_dims": (case.head_dim, case.head_dim_v),
        "tile": (case.block_q, case.block_k),
        "mask": (case.causal, case.window),
        "heads": (case.heads, case.kv_heads),
    }


def cover_with(factors: Factors, begin: Sequence[Row], *, at_least: int = 0) -> list[Row]:
    """Return rows that extend those of ``begin`` and hold every pair of values that can meet."""

    def accepts(row: Row, goal: Row) -> bool:
        return is_possible(row) and (bool(goal) or work(row) <= MAX_WORK)

    rules = Rules(
        score=lambda found, row: found / (MAX_WORK / 4 + work(row)),
        accepts=accepts,
        tested=tested_pairs,
        drawn={name: values[1:] if values is LENGTHS else values for name, values in factors.items()},
        seed=2,
        candidates=CANDIDATES,
    )
    return cover(factors, rules, pairs=possible_pairs(factors), begin=begin, at_least=at_least)


def tested_pairs(row: Row) -> Iterator[Pair]:
    """The pairs of feature values that a row tests: where a length is 0 nothing runs, so only those with that 0."""
    empty = [(name, 0) for name in ("seq_q", "seq_kv") if row.get(name) == 0]
    pairs = itertools.combinations(sorted(row.items(), key=lambda item: item[0]), 2)
    return (pair for pair in pairs if not empty or any(zero in pair for zero in empty))


def possible_pairs(factors: Factors) -> Iterator[Pair]:
    """Pairs of values that meet in some possible row: a few tiles are too large for wide heads."""
    limits = {name: PROGRAM[name] for name in ("dtype", "head_dims", "tile", "num_stages")}
    limiting = [dict(zip(limits, values, strict=True)) for values in itertools.product(*limits.values())]
    for names in itertools.combinations(sorted(factors), 2):
        for values in itertools.product(*(factors[name] for name in names)):
            pair = dict(zip(names, values, strict=True))
            if any(is_possible({**row, **pair}) for row in limiting):
                first, second = pair.items()
                yield first, second


def launch_options(block_q: int, block_k: int, num_stages: int, loads: str) -> dict[str, Any]:
    return {
        "BLOCK_Q": block_q,
        "BLOCK_K": block_k,
        "num_warps": block_q // 16,
        "num_stages": num_stages,
        "loads": loads,
    }


def is_possible(row: Row) -> bool:
    """True if the space allows the config for long sequences on an H200, and the tiles fit memory and registers."""
    block_q, block_k = row["tile"]
    head_dim, head_dim_v = row["head_dims"]
    shape = AttentionShape(batch=1, heads=1, seq_q=4096, head_dim=head_dim, head_dim_v=head_dim_v, dtype=row["dtype"])
    config = Config(launch_options(block_q, block_k, row["num_stages"], "pointer"))
    width_k, width_v = padded_widths(*row["head_dims"])
    held = block_q * width_k + row["num_stages"] * block_k * (width_k + width_v)
    live = block_q * (width_v + block_k)
    return (
        held * ITEM_BYTES[shape.dtype] <= MAX_SHARED_BYTES
        and live <= MAX_LIVE_VALUES
        and IMPLEMENTATION.space.reject(config, shape, NVIDIA_H200) is None
    )


def work(row: Row) -> int:
    """Elements of Q, K and V tiles that are loaded, masks aside, and the tiles; 0 for a program without a problem."""
    if not PROBLEM.keys() <= row.keys():
        return 0
    tile: tuple[int, int] = row["tile"]
    block_q, block_k = tile
    width_k, width_v = padded_widths(*row["head_dims"])
    programs: int = row["batch"] * row["heads"][0] * math.ceil(row["seq_q"] / block_q)
    step = TILE_WORK + block_k * (width_k + width_v)
    steps: int = math.ceil(row["seq_kv"] / block_k)
    return programs * (TILE_WORK + block_q * width_k + steps * step)
