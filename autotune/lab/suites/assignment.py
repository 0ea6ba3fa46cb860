"""The course assignment on an optimized attention kernel: three kernels, fused into one, and torch's SDPA; fp32.

Per head softmax(Q K^T / sqrt(D)) V with 8 heads of 64, no mask; the largest error must stay below 1e-3.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from autotune import sheets
from autotune.dispatch import TunedKernel, get_kernel
from autotune.dtypes import ITEM_BYTES
from autotune.executor import BaselineResult
from autotune.kernels.baselines.eager import Eager
from autotune.kernels.baselines.naive import Naive, memory_traffic
from autotune.lab.bench.comparison import OURS, Comparison
from autotune.lab.bench.entrants import (
    Entrant,
    checker,
    make_comparison,
    measure_case,
    of_baseline,
    of_served,
    ratio,
    served_notes,
)
from autotune.lab.bench.machines import Machine
from autotune.lab.suites.suite import Suite, SuiteSheet
from autotune.registry import get_operation, load_definition
from autotune.shape import AttentionShape

MAX_ERROR: Final = 1e-3
WHEN: Final = ("before", "after")

MATRIX_COLUMNS: Final = (sheets.number("S", "d"), sheets.size("S x S of a head"), sheets.size("of all heads"))
KERNEL_COLUMNS: Final = (
    sheets.number("S", "d"),
    sheets.text("implementation"),
    sheets.number("error", ".1e"),
    sheets.text(f"below {MAX_ERROR:g}"),
    sheets.timing(),
    sheets.ratio("times as slow as SDPA"),
)
FUSION_COLUMNS: Final = (
    sheets.number("S", "d"),
    *map(sheets.timing, WHEN),
    sheets.ratio("gain"),
    *(sheets.size(f"moved {when}") for when in WHEN),
    *(sheets.number(f"FLOP/byte {when}", ".1f") for when in WHEN),
    *(sheets.size(f"extra memory {when}") for when in WHEN),
)
ERROR: Final = f"error: the largest one against fp64; the assignment allows {MAX_ERROR:g}"
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

OPERATION: Final = "flash_attention"
HEADS: Final = 8
HEAD_DIM: Final = 64
LENGTHS: Final = (128, 512, 1024)
MATRIX_LENGTHS: Final = (*LENGTHS, 2048)
NAIVE: Final = "naive"
EAGER: Final = "eager"
SDPA: Final = "sdpa"

Row = tuple[Any, ...]


def measure_assignment(machine: Machine, lengths: tuple[int, ...] = LENGTHS) -> Iterator[SuiteSheet]:
    """Measure errors and slow-down for each length, and what fusion changes; compute the score matrix."""
    yield score_matrices()
    is_cpu = machine.kind == "cpu"
    before, after = (EAGER, SDPA) if is_cpu else (NAIVE, OURS)
    kernels: list[Row] = []
    fusion: list[Row] = []
    failures: list[str] = []
    comparisons: list[Comparison] = []
    ours: dict[str, TunedKernel | None] = {}
    for seq in lengths:
        machine.on_step(f"S {seq}")
        shape = shape_of(seq)
        served = ours[f"S {seq}"] = None if is_cpu else get_kernel(shape)
        names = (before, SDPA) if served is None else (before, OURS, SDPA)
        measured = measure_case(machine, names, functools.partial(_entrants, shape, served, machine.kind))
        found = measured.results
        kernels += [_kernel_row(seq, result, found[SDPA]) for result in found.values()]
        fusion.append(_fusion_row(shape, found[before], found[after]))
        too_far = [
            f"{each.name}: largest error {each.error:.3g}, {MAX_ERROR:g} is allowed"
            for each in found.values()
            if each.error is not None and each.error >= MAX_ERROR
        ]
        failures += [f"S {seq}: {failure}" for failure in (*measured.absent, *measured.failed, *too_far)]
        comparisons.append(make_comparison(machine, OPERATION, shape, measured, served))
        machine.release()
    title = f"three kernels, one, and SDPA: {HEADS} heads of {HEAD_DIM}, float32, no mask"
    where = ON_CPU if is_cpu else f"{OURS}: the fused kernel that get_kernel serves"
    configs = served_notes(ours)
    notes = (where, ERROR, *configs)
    yield SuiteSheet(title, KERNEL_COLUMNS, tuple(kernels), notes, tuple(failures), tuple(comparisons))
    notes = (MOVED, *((SCALED,) if before == EAGER else ()), CLAIM, *configs)
    yield SuiteSheet(f"fusion: {before} before, {after} after", FUSION_COLUMNS, tuple(fusion), notes)


def score_matrices() -> SuiteSheet:
    sizes = {seq: seq * seq * ITEM_BYTES["float32"] for seq in MATRIX_LENGTHS}
    rows = tuple((seq, of_head, HEADS * of_head) for seq, of_head in sizes.items())
    return SuiteSheet(f"the score matrix: {HEADS} heads, float32", MATRIX_COLUMNS, rows)


def shape_of(seq: int) -> AttentionShape:
    return AttentionShape(batch=1, heads=HEADS, seq_q=seq, head_dim=HEAD_DIM, dtype="float32")


def _entrants(shape: AttentionShape, served: TunedKernel | None, device: str) -> list[Entrant]:
    definition = load_definition(OPERATION)
    inputs = definition.make_inputs(shape, seed=0, device=device)
    check = checker(definition, inputs)
    sdpa = Entrant(SDPA, lambda: _sdpa(inputs), check)
    if served is None:
        return [of_baseline(Eager(), shape, inputs, check), sdpa]
    ours = of_served(served, (inputs.q, inputs.k, inputs.v), check)
    return [of_baseline(Naive(), shape, inputs, check), ours, sdpa]


def _sdpa(inputs: Any) -> Callable[[], torch.Tensor]:
    q, k, v = (tensor.transpose(1, 2) for tensor in (inputs.q, inputs.k, inputs.v))
    return lambda: scaled_dot_product_attention(q, k, v).transpose(1, 2)


def _kernel_row(seq: int, result: BaselineResult, sdpa: BaselineResult) -> Row:
    below = "" if result.error is None else "yes" if result.error < MAX_ERROR else "no"
    return seq, result.name, result.error, below, result.timing, ratio(result.timing, sdpa.timing)


def moved_before(name: str, shape: AttentionShape) -> int:
    """Count the bytes that attention moves before fusion, by naive's kernels or by eager torch, which scales apart.

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


SUITE: Final = Suite(
    "assignment",
    "three kernels, their fusion, and SDPA in fp32: errors, slow-down, the score matrix (course assignment)",
    measure_assignment,
    has_comparisons=True,
)
