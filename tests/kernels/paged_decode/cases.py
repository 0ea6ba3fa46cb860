"""The problems that paged decode is checked on: every pair of feature values, without triton or torch.

One list feeds both runs, see ``tests.kernels.cases``: the interpreter takes fp16 and fp32, a GPU these and bf16.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from autotune.search_spaces.bounds import padded_widths
from tests.contract.covering import Row, Rules, cover

MIN_CASES: Final = 780
ON_GPU: Final = 450  # of them, from the first: those hold every pair
QUICK, QUICK_FLOAT8 = 200, 70  # of other types, and of 8-bit floats
LONGEST: Final = ("flat", 24)  # the schedule and the work that take the interpreter longest, 3 s a case
SM_COUNT: Final = 4  # what launches take the device to have: few programs, which cross from sequence to sequence
LARGEST_TILE: Final = 2**15  # numbers in a tile: one of keys and one of values in 16 bits fit every GPU
OTHER_LENGTHS: Final = (37, 0, 130)  # of the sequences after the first
PAGE_LENGTHS: Final = {"page - 1": -1, "page": 0, "page + 1": 1}

FACTORS: Final[Mapping[str, tuple[Any, ...]]] = {
    "dtypes": (
        *(("float16", kv_dtype) for kv_dtype in (None, "int8", "float8_e4m3fn", "float8_e5m2")),
        ("float32", None),
    ),
    "schedule": ("split", "flat"),
    "block_k": (16, 32, 64, 128, 256),
    "work": (1, 2, 6, 24),  # splits of a sequence, or programs of an SM
    "combine": ("kernel", "last"),
    "half_partials": (False, True),
    "block_rows": (16, 32, 64),
    "num_warps": (2, 4, 8),
    "num_stages": (1, 3),
    "head_dims": ((8, 8), (64, 64), (96, 96), (128, 128), (256, 256), (512, 512), (128, 64), (72, 96)),
    "page_size": (1, 3, 16, 64, 528),
    "layout": ("NHD", "HND"),
    "group": (1, 4, 5, 7, 8, 71),
    "kv_heads": (1, 2, 4),
    "tiled_heads": (1, 2, 4),  # KV heads in a tile, where they divide the heads and their rows fit
    "seq_q": (1, 2, 5),
    "first": (0, 1, "page - 1", "page", "page + 1", 1000),  # length of the first sequence
    "batch": (1, 4),
    "window": (None, 1, 9, 70),
    "softcap": (None, 20.0),
    "sinks": (False, True),
    "alibi": (False, True),
    "lse": (False, True),
    "scale": (None, 0.3),
    "q_layout": ("contiguous", "fused", "heads first"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of the launcher: sizes, features, config and the lengths of its sequences."""

    dtype: str
    kv_dtype: str | None
    schedule: str
    block_k: int
    work: int
    combine: str
    half_partials: bool
    block_rows: int
    tiled_heads: int
    num_warps: int
    num_stages: int
    head_dim: int
    head_dim_v: int
    page_size: int
    layout: str
    group: int
    kv_heads: int
    seq_q: int
    lengths: tuple[int, ...]
    window: int | None
    softcap: float | None
    sinks: bool
    alibi: bool
    lse: bool
    scale: float | None
    q_layout: str

    @property
    def options(self) -> dict[str, Any]:
        """The config as the launcher takes it."""
        return {
            "schedule": self.schedule,
            "BLOCK_ROWS": self.block_rows,
            "HEADS": self.tiled_heads,
            "BLOCK_K": self.block_k,
            **self.amounts,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }

    @property
    def amounts(self) -> dict[str, Any]:
        """The parameters that the schedule has."""
        if self.schedule == "flat":
            return {"PROGRAMS_PER_SM": self.work}
        partials = self.dtype if self.half_partials else "float32"
        return {"NUM_SPLITS": self.work, "COMBINE": self.combine, "PARTIALS": partials}

    def __str__(self) -> str:
        features = [
            *([f"w{self.window}"] if self.window else []),
            *(["cap"] if self.softcap else []),
            *(name for name in ("sinks", "alibi", "lse") if getattr(self, name)),
            *(["scale"] if self.scale else []),
            *([] if self.q_layout == "contiguous" else [self.q_layout.replace(" ", "-")]),
        ]
        return (
            f"{self.dtype}-{self.kv_dtype or 'same'}-d{self.head_dim}v{self.head_dim_v}-"
            f"h{self.kv_heads}g{self.group}q{self.seq_q}-"
            f"{'x'.join(map(str, self.lengths))}-{self.layout}{self.page_size}-{'-'.join(features) or 'plain'}-"
            f"{self.schedule}{self.work}-{self.combine}{'-half' if self.half_partials else ''}-"
            f"{self.block_rows}x{self.block_k}h{self.tiled_heads}w{self.num_warps}s{self.num_stages}"
        )


@cache
def interpreted_cases() -> tuple[Case, ...]:
    """At least ``MIN_CASES`` cases in fp16 and fp32 that cover every pair of feature values."""
    return tuple(map(case_of, rows()))


@cache
def quick_cases() -> frozenset[Case]:
    """Those of the quick suite: of the first ones the half that takes least, and none of 8-bit floats that takes
    seconds."""
    cases = [(work(row), case) for row, case in zip(rows(), interpreted_cases(), strict=True)]
    others = [item for item in cases if not has_float8(item[1])][:QUICK]
    float8 = [item for item in cases if has_float8(item[1]) and (item[1].schedule, item[1].work) != LONGEST]
    found = (sorted(some, key=lambda item: item[0]) for some in (others, float8[:QUICK_FLOAT8]))
    return frozenset(case for some in found for _, case in some[: len(some) // 2])


def has_float8(case: Case) -> bool:
    """True if its caches hold 8-bit floats."""
    return case.kv_dtype is not None and case.kv_dtype.startswith("float8")


@cache
def gpu_cases() -> tuple[Case, ...]:
    """The cases that compile in seconds (dots in fp32 are unrolled), and those of them in fp16 again in bf16.

    Two buffers of the largest tiles exceed the shared memory of every GPU: those cases have one. What the registers of
    a few warps cannot hold takes the compiler minutes: those cases have eight.
    """
    cases = [
        replace(
            case,
            num_stages=1 if tile_elements(case) > 128 * 128 else case.num_stages,
            num_warps=8 if live_elements(case) > 128 * 64 else case.num_warps,
        )
        for case in interpreted_cases()[:ON_GPU]
        if case.dtype != "float32" or tile_elements(case) <= 4096
    ]
    return (*cases, *(replace(case, dtype="bfloat16") for case in cases if case.dtype == "float16"))


def tile_elements(case: Case) -> int:
    """Numbers in a tile of keys, or of values where those are wider."""
    return case.block_k * max(padded_widths(case.head_dim, case.head_dim_v))


def live_elements(case: Case) -> int:
    """Numbers of the accumulator and the scores, which stay in registers."""
    return case.block_rows * (padded_widths(case.head_dim, case.head_dim_v)[1] + case.block_k)


@cache
def rows() -> tuple[Row, ...]:
    """The covering list."""
    return tuple(cover(FACTORS, RULES, at_least=MIN_CASES))


def case_of(row: Row) -> Case:
    """A row of the covering list as a case."""
    fields = {name: value for name, value in row.items() if name not in {"dtypes", "head_dims", "first", "batch"}}
    (dtype, kv_dtype), (head_dim, head_dim_v) = row["dtypes"], row["head_dims"]
    heads = row["tiled_heads"]
    if row["kv_heads"] % heads or heads * row["group"] * row["seq_q"] > row["block_rows"]:
        fields["tiled_heads"] = 1
    fields["block_k"] = min(row["block_k"], LARGEST_TILE // max(padded_widths(head_dim, head_dim_v)))
    sizes = {"head_dim": head_dim, "head_dim_v": head_dim_v, "lengths": lengths_of(row)}
    return Case(**fields, **sizes, dtype=dtype, kv_dtype=kv_dtype)


def lengths_of(row: Row) -> tuple[int, ...]:
    first, page = row["first"], row["page_size"]
    first = page + PAGE_LENGTHS[first] if first in PAGE_LENGTHS else first
    return (first, *OTHER_LENGTHS)[: row["batch"]]


def work(row: Row) -> float:
    """The cost of a case in the interpreter, in tiles of keys: those, and rows that a second kernel finishes."""
    rows = row["group"] * row["seq_q"]
    blocks = -(-rows // row["block_rows"])
    tiles = sum(-(-length // row["block_k"]) for length in lengths_of(row))
    finished = row["batch"] * rows * (row["work"] > 1 or row["schedule"] == "flat")
    step = 1 + row["block_k"] * sum(row["head_dims"]) / 16384
    return float(row["kv_heads"] * (blocks * tiles * step + finished))


RULES: Final = Rules(score=lambda found, row: (1 + found) / (40 + work(row)))
