"""The course assignment on an optimized attention kernel: three kernels, fused into one, and torch's SDPA; fp32.

Per head softmax(Q K^T / sqrt(D)) V with 8 heads of 64, no mask; the largest error must stay below 1e-3.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from autotune.comparison.entry import Comparison
from autotune.comparison.on_gpu import OURS
from autotune.comparison.suites.contenders import (
    Contender,
    judge_inputs,
    make_comparison,
    measure_case,
    of_baseline,
    of_served,
    ratio,
    served_notes,
)
from autotune.comparison.suites.machine import Machine
from autotune.comparison.suites.suite import Column, Row, Suite, Table
from autotune.correctness import check_baseline
from autotune.dispatch import TunedKernel, get_kernel
from autotune.executor import BaselineResult
from autotune.kernels.baselines.eager import Eager
from autotune.kernels.baselines.naive import Naive, memory_traffic
from autotune.registry import get_operation, load_kernel
from autotune.shape import ITEM_BYTES, AttentionShape

OPERATION: Final = "flash_attention"
HEADS: Final = 8
HEAD_DIM: Final = 64
LENGTHS: Final = (128, 512, 1024)
MATRIX_LENGTHS: Final = (*LENGTHS, 2048)
MAX_ERROR: Final = 1e-3
NAIVE: Final = "naive"
EAGER: Final = "eager"
SDPA: Final = "sdpa"

MATRIX_COLUMNS: Final = (Column("S", "count"), Column("S x S of a head", "bytes"), Column("of all heads", "bytes"))
KERNEL_COLUMNS: Final = (
    Column("S", "count"),
    Column("implementation"),
    Column("error", "error"),
    Column(f"below {MAX_ERROR:g}"),
    Column("time", "time"),
    Column("times as slow as SDPA", "ratio"),
)
FUSION_COLUMNS: Final = (
    Column("S", "count"),
    Column("before", "time"),
    Column("after", "time"),
    Column("gain", "ratio"),
    Column("moved before", "bytes"),
    Column("moved after", "bytes"),
    Column("FLOP/byte before", "intensity"),
    Column("FLOP/byte after", "intensity"),
    Column("extra memory before", "bytes"),
    Column("extra memory after", "bytes"),
)
CLAIM: Final = (
    "the intensity of the three kernels rises with S, as S D / (4 (D + S)) does in fp32 (10.7 at 128, 15.1 at 1024, "
    "towards D / 4 = 16); that it falls is wrong, and memory limits them only below the device's ridge, which "
    "`autotune analyze roofline` measures"
)
ON_CPU: Final = (
    "no Triton kernel runs on a CPU: eager stands for naive, torch's operations one after another, "
    "and SDPA for the fused kernel"
)
MOVED: Final = (
    "moved: by formula, before the bytes of every read and write, after what must be moved at least; "
    "extra memory: the most beside inputs and output"
)
SCALED: Final = "eager moves the scores six times, naive four: it scales them by an operation of its own"


def measure_assignment(machine: Machine, lengths: tuple[int, ...] = LENGTHS) -> Iterator[Table]:
    """The score matrix, errors and slow-down for each length, and what fusion changes."""
    yield score_matrices()
    before, after = (EAGER, SDPA) if machine.kind == "cpu" else (NAIVE, OURS)
    where = (ON_CPU,) if machine.kind == "cpu" else (f"{OURS}: the fused kernel that get_kernel serves",)
    kernels: list[Row] = []
    fusion: list[Row] = []
    failures: list[str] = []
    comparisons: list[Comparison] = []
    ours: dict[str, TunedKernel | None] = {}
    for seq in lengths:
        machine.on_step(f"S {seq}")
        shape = _shape(seq)
        served = ours[f"S {seq}"] = None if machine.kind == "cpu" else get_kernel(shape)
        names = (before, SDPA) if served is None else (before, OURS, SDPA)
        measured = measure_case(machine, names, functools.partial(_contenders, shape, served, machine.kind))
        found = measured.results
        kernels += [_kernel_row(seq, result, found[SDPA]) for result in found.values()]
        fusion.append(_fusion_row(shape, found[before], found[after]))
        failures += [f"S {seq}: {failure}" for failure in (*measured.absent, *measured.failed, *_too_far(found))]
        comparisons.append(make_comparison(machine, OPERATION, shape, measured, served))
        machine.release()
    title = f"three kernels, one, and SDPA: {HEADS} heads of {HEAD_DIM}, float32, no mask"
    error = f"error: the largest one against fp64; the assignment allows {MAX_ERROR:g}"
    configs = served_notes(ours)
    yield Table(title, KERNEL_COLUMNS, tuple(kernels), (*where, error, *configs), tuple(failures), tuple(comparisons))
    notes = (MOVED, *((SCALED,) if before == EAGER else ()), CLAIM, *configs)
    yield Table(f"fusion: {before} before, {after} after", FUSION_COLUMNS, tuple(fusion), notes)


def score_matrices() -> Table:
    """What the scores take in memory, in fp32."""
    rows: list[Row] = []
    for seq in MATRIX_LENGTHS:
        of_head = seq * seq * ITEM_BYTES["float32"]
        rows.append((seq, of_head, HEADS * of_head))
    return Table(f"the score matrix: {HEADS} heads, float32", MATRIX_COLUMNS, tuple(rows))


def _shape(seq: int) -> AttentionShape:
    return AttentionShape(batch=1, heads=HEADS, seq_q=seq, head_dim=HEAD_DIM, dtype="float32")


def _contenders(shape: AttentionShape, served: TunedKernel | None, device: str) -> list[Contender]:
    kernel = load_kernel(OPERATION)
    inputs = kernel.make_inputs(shape, seed=0, device=device)
    case = judge_inputs(kernel, inputs)

    def check(out: torch.Tensor) -> tuple[float, float]:
        return check_baseline(out, case)

    sdpa = Contender(SDPA, lambda: _sdpa(inputs), check)
    if served is None:
        return [of_baseline(Eager(), shape, inputs, check), sdpa]
    ours = of_served(served, (inputs.q, inputs.k, inputs.v), check)
    return [of_baseline(Naive(), shape, inputs, check), ours, sdpa]


def _sdpa(inputs: Any) -> Callable[[], torch.Tensor]:
    """By the backend that torch chooses."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (inputs.q, inputs.k, inputs.v))
    return lambda: scaled_dot_product_attention(q, k, v).transpose(1, 2)


def _kernel_row(seq: int, result: BaselineResult, sdpa: BaselineResult) -> Row:
    below = "" if result.error is None else "yes" if result.error < MAX_ERROR else "no"
    return seq, result.name, result.error, below, result.timing, ratio(result.timing, sdpa.timing)


def moved_before(name: str, shape: AttentionShape) -> int:
    """Bytes that attention moves before fusion: naive's kernels, or eager torch, which reads and writes the scores once
    more, to scale them.

    Example:
        >>> moved_before("naive", AttentionShape(batch=1, heads=8, seq_q=1024, head_dim=64, dtype="float32")) // 2**20
        136
    """
    scores = shape.heads * shape.seq_q * shape.seq_kv * ITEM_BYTES[shape.dtype]
    return memory_traffic(shape) + (2 * scores if name == EAGER else 0)


def _fusion_row(shape: AttentionShape, before: BaselineResult, after: BaselineResult) -> Row:
    cost = get_operation(OPERATION).cost(shape)
    moved = moved_before(before.name, shape)
    intensities = (cost.flops / moved, cost.flops / cost.bytes)
    times = (before.timing, after.timing, ratio(before.timing, after.timing))
    return (shape.seq_q, *times, moved, cost.bytes, *intensities, before.extra_bytes, after.extra_bytes)


def _too_far(found: Mapping[str, BaselineResult]) -> list[str]:
    """A line for each whose error the assignment does not allow."""
    return [
        f"{result.name}: largest error {result.error:.3g}, {MAX_ERROR:g} is allowed"
        for result in found.values()
        if result.error is not None and result.error >= MAX_ERROR
    ]


SUITE: Final = Suite(
    "assignment",
    "three kernels, their fusion, and SDPA in fp32: errors, slow-down, the score matrix (course assignment)",
    measure_assignment,
    has_comparisons=True,
)
