"""The problems that paged prefill is checked on: every pair of feature values, without triton or torch.

One list feeds both runs, see ``tests.kernels.cases``: the interpreter takes fp16 and fp32, a GPU these and bf16.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from autotune.search_spaces.bounds import padded_widths
from tests.contract.covering import Row, Rules, cover

MIN_CASES: Final = 250
MAX_HELD_BYTES: Final = 192 * 1024  # of Q, K and V tiles; an H200 has 227 KB

# Keys of each sequence, those of its new queries included, and its new queries; "page" is the size of a page.
Sequences = tuple[tuple[int | str, int], ...]
SEQUENCES: Final[Mapping[str, Sequences]] = {
    "prompt": ((70, 70),),
    "chunk": ((200, 40),),
    "one": ((1, 1),),
    "decode": ((37, 1), (0, 1), (130, 1), (65, 1)),
    "mixed": ((150, 1), (90, 45), (0, 0), (17, 1), (66, 65)),
    "page": (("page - 1", 9), ("page", 17), ("page + 1", 2)),
    "blind": ((5, 20), (0, 3), (33, 33)),
    "gaps": ((40, 0), (33, 33), (20, 0), (0, 0), (2, 2)),
}
PAGE_LENGTHS: Final = {"page - 1": -1, "page": 0, "page + 1": 1}

FACTORS: Final[Mapping[str, tuple[Any, ...]]] = {
    "dtypes": (
        *(("float16", kv_dtype) for kv_dtype in (None, "int8", "float8_e4m3fn", "float8_e5m2")),
        ("float32", None),
    ),
    "causal": (True, False),
    "block_q": (16, 32, 64, 128),
    "small_q": (0, 16),
    "block_k": (16, 32, 64, 128),
    "order": ("head", "tile"),
    "num_stages": (1, 3),
    "head_dims": ((64, 64), (128, 128), (256, 256), (72, 96), (192, 128)),
    "page_size": (1, 3, 16, 64, 528),
    "layout": ("NHD", "HND"),
    "group": (1, 4, 7),
    "kv_heads": (1, 2),
    "sequences": tuple(SEQUENCES),
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
    """One call of the launcher: sizes, features, config, and the lengths and new queries of its sequences."""

    dtype: str
    kv_dtype: str | None
    causal: bool
    block_q: int
    small_q: int
    block_k: int
    order: str
    num_stages: int
    head_dim: int
    head_dim_v: int
    page_size: int
    layout: str
    group: int
    kv_heads: int
    lengths: tuple[int, ...]
    query_lengths: tuple[int, ...]
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
            "BLOCK_Q": self.block_q,
            "SMALL_Q": self.small_q,
            "BLOCK_K": self.block_k,
            "order": self.order,
            "num_warps": 8 if self.block_q == 128 else 4,
            "num_stages": self.num_stages,
        }

    def __str__(self) -> str:
        features = [
            *([] if self.causal else ["full"]),
            *([f"w{self.window}"] if self.window else []),
            *(["cap"] if self.softcap else []),
            *(name for name in ("sinks", "alibi", "lse") if getattr(self, name)),
            *(["scale"] if self.scale else []),
            *([] if self.q_layout == "contiguous" else [self.q_layout.replace(" ", "-")]),
        ]
        sequences = "+".join(f"{q}of{k}" for k, q in zip(self.lengths, self.query_lengths, strict=True))
        return (
            f"{self.dtype}-{self.kv_dtype or 'same'}-d{self.head_dim}v{self.head_dim_v}-"
            f"h{self.kv_heads}g{self.group}-{sequences}-"
            f"{self.layout}{self.page_size}-{'-'.join(features) or 'plain'}-"
            f"{self.block_q}({self.small_q})x{self.block_k}s{self.num_stages}-{self.order}"
        )


@cache
def interpreted_cases() -> tuple[Case, ...]:
    """At least ``MIN_CASES`` cases in fp16 and fp32 that cover every pair of feature values."""
    return tuple(map(case_of, covering_rows()))


@cache
def slow_cases() -> frozenset[Case]:
    """The half that takes the interpreter longest."""
    rows = sorted(covering_rows(), key=work)
    return frozenset(map(case_of, rows[len(rows) // 2 :]))


@cache
def gpu_cases() -> tuple[Case, ...]:
    """The cases that compile in seconds (dots in fp32 are unrolled), and those of them in fp16 again in bf16.

    Where several buffers exceed the shared memory of every GPU, there is one.
    """
    cases = [
        replace(case, num_stages=1) if held_bytes(case) > MAX_HELD_BYTES else case
        for case in interpreted_cases()
        if case.dtype != "float32" or compiles_quickly(case)
    ]
    return (*cases, *(replace(case, dtype="bfloat16") for case in cases if case.dtype == "float16"))


def compiles_quickly(case: Case) -> bool:
    """Of a case in fp32: whether its tiles are small; larger ones took 10 s and more (Triton 3.6, sm_90, one core)."""
    width = max(padded_widths(case.head_dim, case.head_dim_v))
    return case.block_k * width <= 4096 and case.block_q * case.block_k <= 2048


def held_bytes(case: Case) -> int:
    """Shared memory that the tiles take: the queries, and keys and values of every stage."""
    width_k, width_v = padded_widths(case.head_dim, case.head_dim_v)
    numbers = case.block_q * width_k + case.num_stages * case.block_k * (width_k + width_v)
    return numbers * (4 if case.dtype == "float32" else 2)


@cache
def covering_rows() -> tuple[Row, ...]:
    return tuple(cover(FACTORS, RULES, at_least=MIN_CASES))


def case_of(row: Row) -> Case:
    """A row of the covering list as a case."""
    fields = {name: value for name, value in row.items() if name not in {"dtypes", "head_dims", "sequences"}}
    dtype, kv_dtype = row["dtypes"]
    head_dim, head_dim_v = row["head_dims"]
    lengths, query_lengths = zip(*sequences_of(row), strict=True)
    sizes = {"head_dim": head_dim, "head_dim_v": head_dim_v, "lengths": lengths, "query_lengths": query_lengths}
    return Case(**fields, **sizes, dtype=dtype, kv_dtype=kv_dtype)


def sequences_of(row: Row) -> list[tuple[int, int]]:
    page = row["page_size"]
    return [
        (page + PAGE_LENGTHS[length] if isinstance(length, str) else length, queries)
        for length, queries in SEQUENCES[row["sequences"]]
    ]


def work(row: Row) -> float:
    """The cost of a case in the interpreter, in tiles of scores."""
    step = 1 + (row["block_k"] + row["block_q"]) * sum(row["head_dims"]) / 16384
    tiles = sum(
        -(-queries * row["group"] // row["block_q"]) * -(-length // row["block_k"])
        for length, queries in sequences_of(row)
    )
    return float(row["kv_heads"] * tiles * step)


RULES: Final = Rules(score=lambda found, row: (1 + found) / (40 + work(row)))
