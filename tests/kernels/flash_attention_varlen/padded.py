"""Padded batches, and packed sequences of which not all rows count: their truth by the formula, all scores at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import torch

from autotune.correctness import STATISTIC_UNITS, error_limit
from autotune.implementation import Kernel
from autotune.kernels.flash_attention_varlen.triton import KERNEL
from autotune.space import Config
from autotune.varlen_shape import VarlenShape
from tests.kernels.flash_attention_varlen.numerics import HALF, TRITON, Runner
from tests.kernels.numerics import compare, dense_attention

NAMES: Final = ("q_lens", "kv_lens", "kv_starts")
OF_KERNEL: Final = ("seqused_q", "seqused_k", "kv_starts")
Numbers = tuple[Sequence[int] | None, Sequence[int] | None, Sequence[int] | None]


@dataclass(frozen=True, slots=True)
class PaddedCase:
    """A padded batch: its sizes, the numbers of each sequence, and the fields of its shape."""

    rows: tuple[int, int]
    numbers: Numbers
    fields: dict[str, Any] = field(default_factory=dict)


LEFT: Final = (None, None, (0, 7, 40, 39))
RIGHT: Final = (None, (40, 33, 0, 1), None)
BOTH: Final = ((40, 30, 0, 9), (40, 33, 16, 1), (0, 5, 16, 0))
CASES: Final = {
    "right": PaddedCase((40, 40), RIGHT),
    "left": PaddedCase((40, 40), LEFT),
    "both": PaddedCase((40, 40), BOTH),
    "queries": PaddedCase((40, 40), ((40, 33, 0, 1), (40, 33, 0, 1), None)),
    "queries alone": PaddedCase((40, 40), ((40, 33, 0, 1), None, None), {"causal": False}),
    "full": PaddedCase((40, 40), BOTH, {"causal": False}),
    "chunk": PaddedCase((7, 90), (None, (90, 88, 40, 0), (0, 80, 3, 0))),
    "more queries than keys": PaddedCase((50, 20), ((50, 40, 31, 3), (20, 11, 9, 20), (0, 3, 0, 20))),
    "one query": PaddedCase((1, 70), (None, (70, 69, 3, 0), (1, 0, 3, 0))),
    "window": PaddedCase((40, 40), BOTH, {"window": 9}),
    "two-sided window": PaddedCase((40, 60), (None, (60, 33, 16, 1), (0, 5, 16, 0)), {"causal": False, "window": 9}),
    "window beyond the keys": PaddedCase((40, 40), (None, (3, 40, 1, 0), None), {"window": 4}),
    "softcap": PaddedCase((40, 40), BOTH, {"softcap": True}),
    "sinks": PaddedCase((40, 40), BOTH, {"sinks": True}),
    "odd heads": PaddedCase((21, 35), (None, (35, 33, 16, 1), (0, 5, 16, 0)), {"heads": 5, "kv_heads": 1}),
    "values of another width": PaddedCase((40, 40), BOTH, {"head_dim": 40, "head_dim_v": 24}),
    "float32": PaddedCase((40, 40), BOTH, {"dtype": "float32"}),
    "float32, full": PaddedCase((40, 40), BOTH, {"dtype": "float32", "causal": False, "window": 9}),
}


def shape_of(case: PaddedCase) -> VarlenShape:
    fields = HALF.as_dict() | {"batch": 4, "max_seq_q": 128, "max_seq_kv": 128, "head_dim_v": HALF.head_dim}
    return VarlenShape(**{**fields, "mean_seq_q": 50, "mean_seq_kv": 50, **case.fields})


def draw(case: PaddedCase, device: str) -> dict[str, Any]:
    """Draw tensors as an engine has them, heads before rows; what does not count is NaN, which spoils what reads it."""
    shape = shape_of(case)
    generator = torch.Generator().manual_seed(3)
    sizes = {"q": (case.rows[0], shape.heads, shape.head_dim), "k": (case.rows[1], shape.kv_heads, shape.head_dim)}
    sizes["v"] = (case.rows[1], shape.kv_heads, shape.head_dim_v)
    given: dict[str, Any] = {
        name: torch.randn(shape.batch, heads, rows, width, generator=generator).transpose(1, 2)
        for name, (rows, heads, width) in sizes.items()
    }
    given |= dict.fromkeys(NAMES)
    for name, values in zip(NAMES, case.numbers, strict=True):
        if values is not None:
            given[name] = torch.tensor(values, dtype=torch.int32)
    given["q"][~counts(given["q"], None, given["q_lens"])] = math.nan
    for name in ("k", "v"):
        given[name][~counts(given[name], given["kv_starts"], given["kv_lens"])] = math.nan
    given["sinks"] = torch.randn(shape.heads, generator=generator) if shape.sinks else None
    dtype = getattr(torch, shape.dtype)
    return {
        name: each if each is None else each.to(device, dtype if name in ("q", "k", "v") else each.dtype)
        for name, each in given.items()
    }


def counts(rows: torch.Tensor, starts: torch.Tensor | None, lens: torch.Tensor | None) -> torch.Tensor:
    """Return which rows of ``[B, S, ...]`` count."""
    places = torch.arange(rows.shape[1], device=rows.device).expand(rows.shape[:2])
    first = 0 if starts is None else starts[:, None]
    return (places >= first) & (places < (rows.shape[1] if lens is None else lens[:, None]))


def padded_truth(
    given: dict[str, Any], dtype: torch.dtype, *, causal: bool, window: int | None, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output ``[B, S_q, H, D_v]`` and the logarithm ``[B, S_q, H]``: query i sees key j if j counts, i counts, and
    it did without padding."""
    kept = {name: counts(given[name], given["kv_starts"], given["kv_lens"]) for name in ("k", "v")}
    kept["q"] = counts(given["q"], None, given["q_lens"])
    q, k, v = (
        given[name].to(dtype).masked_fill(~kept[name][:, :, None, None], 0.0).transpose(1, 2)
        for name in ("q", "k", "v")
    )
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * q.shape[3] ** -0.5
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    rows, keys = scores.shape[2:]
    ahead = torch.arange(keys, device=q.device) - torch.arange(rows, device=q.device)[:, None] - (keys - rows)
    visible = kept["q"][:, :, None] & kept["k"][:, None, :]
    if causal:
        visible = visible & (ahead <= 0)
    if window is not None:
        visible = visible & (ahead.abs() < window)
    scores = scores.masked_fill(~visible[:, None], -math.inf)
    out = (scores.softmax(-1).nan_to_num(0.0) @ v.repeat_interleave(group, 1)).transpose(1, 2)
    lse = scores.logsumexp(-1).transpose(1, 2)
    if given["sinks"] is not None:
        with_sinks = torch.logaddexp(lse, given["sinks"].to(dtype))
        out, lse = out * (lse - with_sinks).exp()[..., None], with_sinks
    return out, lse


def padded_failure(
    case: PaddedCase, device: str, configs: Sequence[Config] = TRITON.configs, kernel: Kernel = KERNEL
) -> str | None:
    """Run a case by these configs: the truth, and the same bits by each."""
    shape, given = shape_of(case), draw(case, device)
    softcap = 2.0 if shape.softcap else None
    features: dict[str, Any] = {"causal": shape.causal, "window": shape.window, "softcap": softcap}
    expected = padded_truth(given, torch.float64, **features)
    numbers = dict(zip(OF_KERNEL, (given[each] for each in NAMES), strict=True))
    options = {"sinks": given["sinks"], "softcap": softcap, "return_lse": True}
    first: tuple[torch.Tensor, ...] | None = None
    for config in configs:
        call = kernel.bind(config, shape)
        found = call(given["q"], given["k"], given["v"], None, None, **numbers, **options)
        for index, (one, true) in enumerate(zip(found, expected, strict=True)):
            rounded = padded_truth(given, one.dtype, **features)[index]
            limit = error_limit(true, rounded, one.dtype, **({"units": STATISTIC_UNITS} if index else {}))
            if (problem := compare(one, true, limit + (slack(given["q"], softcap) if index else 0.0))) is not None:
                return f"{config}, output {index}: {problem}"
        first = first or found
        if not all(torch.equal(*pair) for pair in zip(first, found, strict=True)):
            return f"{config}: other bits than by the first config"
    return None


def slack(q: torch.Tensor, softcap: float | None) -> float:
    """As of packed sequences in the contract: tanh is as exact as its cap, a score as its partial sums are large."""
    eps, largest = torch.finfo(torch.float32).eps, q.float().nan_to_num(0.0).norm(dim=-1).max().item()
    return float(2 * eps * (softcap or 0.0) + eps * q.shape[3] ** -0.5 * largest**2)


Pairs = tuple[tuple[tuple[int, int], tuple[int, int]], ...]
# Of each sequence its queries and keys, and how many of them count.
USED: Final = (((20, 40), (20, 33)), ((40, 20), (17, 20)), ((9, 9), (0, 9)), ((30, 30), (30, 0)), ((33, 33), (32, 31)))
LONG: Final = (((300, 200), (100, 150)), ((140, 30), (0, 30)), ((129, 129), (129, 65)))  # longer than a tile
OUT_OF_RANGE: Final = (
    *(((150, 200), (2**31 - 1, -5)), ((140, 30), (-(2**31), 2**30)), ((70, 90), (71, 2**31 - 1))),
    *(((9, 9), (-1, 10)), ((33, 33), (32, -(2**31)))),
)


@dataclass(frozen=True, slots=True)
class UsedCase:
    """Packed sequences of which not all rows count: of which side it is said, and the fields of their shape."""

    fields: dict[str, Any] = field(default_factory=dict)
    pairs: Pairs = USED
    given: str = "qk"


USED_CASES: Final = {
    "sinks": UsedCase({"sinks": True}),
    "queries alone, sinks": UsedCase({"sinks": True}, given="q"),
    "queries alone, full": UsedCase({"causal": False}, given="q"),
    "keys alone": UsedCase(given="k"),
    "keys alone, full": UsedCase({"causal": False}, LONG, "k"),
    "full": UsedCase({"causal": False}, LONG),
    "out of range": UsedCase({}, OUT_OF_RANGE),
    "out of range, full and sinks": UsedCase({"causal": False, "sinks": True}, OUT_OF_RANGE),
    "one row of one head": UsedCase({"heads": 1, "kv_heads": 1}, (((1, 1), (1, 1)),)),
    "no row of one head": UsedCase({"heads": 1, "kv_heads": 1, "sinks": True}, (((1, 1), (0, 1)),)),
}


def used_failure(
    case: UsedCase, device: str, kernel: Kernel = KERNEL, configs: Sequence[Config] = TRITON.configs
) -> str | None:
    """Run a case: each sequence is as if it ended with the rows that count, and what is beyond is NaN.

    Numbers out of range are taken for the nearest in it.
    """
    fields = case.fields
    shape = VarlenShape(**{**HALF.as_dict(), "max_seq_q": 64, "max_seq_kv": 64, "mean_seq_kv": 40, **fields})
    rows, said = (torch.tensor(each) for each in zip(*case.pairs, strict=True))
    used = torch.minimum(said.clamp(min=0), rows)
    for side in (side for side, name in enumerate("qk") if name not in case.given):
        used[:, side] = rows[:, side]
    offsets = torch.nn.functional.pad(rows.cumsum(0), (0, 0, 1, 0)).int()
    generator = torch.Generator().manual_seed(4)
    dtype = getattr(torch, shape.dtype)
    q, k, v = (
        torch.randn(int(offsets[-1, side]), heads, shape.head_dim, generator=generator).to(device, dtype)
        for side, heads in ((0, shape.heads), (1, shape.kv_heads), (1, shape.kv_heads))
    )
    true, lse = torch.zeros(q.shape, dtype=torch.float64, device=device), q.new_full(q.shape[:2], -math.inf).double()
    eager, features = torch.zeros_like(q), {"causal": shape.causal, "window": shape.window, "scale": q.shape[2] ** -0.5}
    for (begin, _), (first, _), (queries, keys) in zip(
        pairwise(offsets[:, 0].tolist()), pairwise(offsets[:, 1].tolist()), used.tolist(), strict=True
    ):
        ends = begin + queries, first + keys
        if queries and keys:
            parts = q[None, begin : ends[0]], k[None, first : ends[1]], v[None, first : ends[1]]
            found, logarithms = dense_attention(*parts, **features, dtype=torch.float64)
            true[begin : ends[0]], lse[begin : ends[0]] = found[0], logarithms[0].T
            eager[begin : ends[0]] = dense_attention(*parts, **features, dtype=dtype)[0][0]
    sinks = torch.randn(shape.heads, generator=generator).to(device) if shape.sinks else None
    if sinks is not None:
        share = torch.sigmoid(lse - sinks.double())[..., None]
        true, eager, lse = true * share, (eager * share).to(dtype), torch.logaddexp(lse, sinks.double())
    for tensor, side in ((q, 0), (k, 1), (v, 1)):
        for (begin, end), count in zip(pairwise(offsets[:, side].tolist()), used[:, side].tolist(), strict=True):
            tensor[begin + count : end] = math.nan
    both = [offsets[:, side].contiguous().to(device) for side in (0, 1)]
    numbers = {
        f"seqused_{each}": said[:, side].int().contiguous().to(device)
        for side, each in enumerate("qk")
        if each in case.given
    }
    for config in configs:
        out, logarithms = kernel.bind(config, shape)(q, k, v, *both, **numbers, sinks=sinks, return_lse=True)
        problem = compare(out, true, error_limit(true, eager, dtype)) or compare(logarithms, lse, 1e-5)
        if problem is not None:
            return f"{config}: {problem}"
    return None


def hostile_failure(device: str, runner: Runner = TRITON) -> str | None:
    """Numbers out of range are taken for the nearest in it: nothing beside the batch is read or written."""
    shape = shape_of(CASES["right"])
    room = torch.full((6, 40, 4, 32), math.nan, dtype=torch.float16, device=device)
    room[1:5] = torch.randn(4, 40, 4, 32, generator=torch.Generator().manual_seed(0)).to(device)
    q, k, v = room[1:5], room[1:5, :, :2], room[1:5, :, 2:]
    numbers = [(2**31 - 1, -(2**31), -1, 41), (-(2**31), 2**31 - 1, -5, 3)]
    lens, starts = (torch.tensor(each, dtype=torch.int32, device=device) for each in numbers)
    allowed = (lens.clamp(0, 40), torch.minimum(starts.clamp(0, 40), lens.clamp(0, 40)))
    for config in runner.configs:
        buffer = torch.full((6, 40, 4, 32), -7.0, dtype=torch.float16, device=device)
        call = runner.kernel.bind(config, shape)
        call(q, k, v, None, None, seqused_q=lens, seqused_k=lens, kv_starts=starts, out=buffer[1:5])
        expected = call(q, k, v, None, None, seqused_q=allowed[0], seqused_k=allowed[0], kv_starts=allowed[1])
        if not torch.equal(buffer[1:5], expected) or expected.isnan().any():
            return f"{config}: numbers out of range are not those of the range's ends"
        if not bool((buffer[[0, 5]] == -7.0).all()):
            return f"{config}: rows beside the batch were written"
    return None


def graph_failure(runner: Runner = TRITON) -> str | None:
    """Replay a captured call after the numbers have changed: it computes the new ones."""
    case = CASES["both"]
    shape, given = shape_of(case), draw(PaddedCase(case.rows, ((40,) * 4, (40,) * 4, (0,) * 4)), "cuda")
    for config in runner.configs:
        call, out = runner.kernel.bind(config, shape), torch.empty_like(given["q"].contiguous())
        tensors = [given[each] for each in ("q", "k", "v")]
        numbers = dict(zip(OF_KERNEL, (given[each] for each in NAMES), strict=True))
        call(*tensors, None, None, **numbers, out=out)  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call(*tensors, None, None, **numbers, out=out)
        for changed in (case.numbers, ((9,) * 4, (3, 40, 0, 8), (0, 39, 0, 8))):
            for name, values in zip(NAMES, changed, strict=True):
                given[name].copy_(torch.tensor(values))
            graph.replay()
            features: dict[str, Any] = {"causal": shape.causal, "window": None, "softcap": None}
            expected, eager = (padded_truth(given, each, **features)[0] for each in (torch.float64, torch.float16))
            if (problem := compare(out, expected, error_limit(expected, eager, torch.float16))) is not None:
                return f"{config}: {problem}"
    return None
