"""The memory that attention takes beside its inputs: O(S^2) where scores lie in memory, O(S) where they do not."""

import gc
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from autotune import sheets
from autotune.allocations import METHODS, peak_of
from autotune.dtypes import ITEM_BYTES
from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.lab.absent import absence_lines
from autotune.lab.formulas import MASK_BYTES, fused_movements, is_copied, total_bytes
from autotune.lab.machine.processor import Processor, usable_bytes
from autotune.lab.machine.subjects import Family, first_line, subjects, why_not
from autotune.operation import Baseline
from autotune.shape import AttentionShape
from autotune.sheets import Sheet
from autotune.units import bytes_text

LSE_BYTES: Final = 4  # of a fused backend's log-sum-exp, fp32
POSITION_BYTES: Final = 8  # of the distances that a mask is made from, int64
LENGTHENING: Final = 4.5  # times longer that doubling a length takes at most: work in S^2, and caches left behind


@dataclass(frozen=True, slots=True)
class Peak:
    """The most memory that a call holds beside q, k and v, in bytes: predicted, and measured or why not."""

    name: str
    shape: AttentionShape
    predicted: int
    measured: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ScoreMatrix:
    """The matrix of scores ``[S_q, S_kv]`` of one head, and those of all heads and sequences; bytes."""

    shape: AttentionShape
    of_head: int
    total: int


def score_matrix(shape: AttentionShape) -> ScoreMatrix:
    """Return the memory that the scores take where they are stored.

    Example:
        >>> score_matrix(AttentionShape(batch=1, heads=8, seq_q=1024, head_dim=64, dtype="float32")).of_head // 1024
        4096
    """
    of_head = shape.seq_q * shape.seq_kv * ITEM_BYTES[shape.dtype]
    return ScoreMatrix(shape, of_head, of_head * shape.batch * shape.heads)


def peak_bytes(family: Family, shape: AttentionShape) -> int:
    """Predict the peak by formula, outputs included.

    naive: one matrix of scores, in which the softmax replaces them. eager: two at a time, the one that an operation
    reads and the one that it writes; beside them the mask, and the copies that ``formulas.eager_movements`` names.
    fused: the output and a logarithm a query, whatever the lengths.
    """
    scores = score_matrix(shape).total
    queries = shape.batch * shape.heads * shape.seq_q
    out = queries * shape.head_dim_v * ITEM_BYTES[shape.dtype]
    if family == "naive":
        return scores + out
    if family == "fused":
        return out + queries * LSE_BYTES
    return _eager_peak(shape, scores, out)


def input_bytes(shape: AttentionShape) -> int:
    return total_bytes(movement for movement in fused_movements(shape) if movement.action == "read")


def _eager_peak(shape: AttentionShape, scores: int, out: int) -> int:
    item = ITEM_BYTES[shape.dtype]
    keys = shape.batch * shape.heads * shape.seq_kv * item
    pairs = shape.seq_q * shape.seq_kv
    mask = pairs * MASK_BYTES if shape.causal else 0
    making = pairs * (POSITION_BYTES + MASK_BYTES) if shape.causal else 0
    expanded = keys * (shape.head_dim + shape.head_dim_v) if shape.group > 1 else 0
    copies_keys = shape.group == 1 and is_copied(shape, shape.seq_kv)
    k_copy, v_copy = (keys * width if copies_keys else 0 for width in (shape.head_dim, shape.head_dim_v))
    q_copy = 0
    if is_copied(shape, shape.seq_q):
        q_copy = shape.batch * shape.heads * shape.seq_q * shape.head_dim * item
    first_product = q_copy + k_copy + scores
    return max(making, mask + expanded + max(first_product, 2 * scores + v_copy + out))


def measure_peaks(
    shapes: Sequence[AttentionShape],
    processor: Processor,
    *,
    seconds: float,
    on_step: Callable[[str], object] = lambda step: None,
) -> Iterator[Peak]:
    """Measure the peaks of each implementation over rising lengths, one run each, and yield them as they are found.

    An implementation is not run where its prediction exceeds the memory that may be asked for, nor where the next
    length would take more than ``seconds``, judged by the one before. ``on_step`` is called before each run.
    """
    for family, baseline in subjects():
        took, before = 0.0, shapes[0]
        for shape in shapes:
            predicted = peak_bytes(family, shape)
            expected = took * LENGTHENING ** math.log(_work(shape) / _work(before), 4)
            reason = why_not(baseline, shape, processor.kind) or _too_much(predicted, shape, processor)
            if reason := reason or _too_long(expected, seconds):
                yield Peak(baseline.name, shape, predicted, None, reason)
                continue
            on_step(f"measuring {baseline.name} at {shape.seq_q}")
            peak, run_seconds = _measure(baseline, shape, processor, predicted)
            yield peak
            if peak.measured is not None:
                took, before = run_seconds, shape


def method(processor: Processor) -> str:
    return METHODS[processor.kind]


def _measure(baseline: Baseline, shape: AttentionShape, processor: Processor, predicted: int) -> tuple[Peak, float]:
    """Return the peak of a run and its seconds, or the reason why there is none."""
    from autotune.kernels.flash_attention.definition import DEFINITION

    inputs = DEFINITION.make_inputs(shape, seed=0, device=processor.kind)

    def run() -> object:
        return baseline.prepare(shape, inputs)()

    try:
        with warnings.catch_warnings(action="ignore"):  # a backend that refuses says so there, and raises
            measured, seconds = _peak_after_warm_up(run, processor)
    except (RuntimeError, MissingDependencyError, BaselineUnavailableError) as error:
        return Peak(baseline.name, shape, predicted, None, first_line(error)), 0.0
    return Peak(baseline.name, shape, predicted, measured), seconds


def _peak_after_warm_up(run: Callable[[], object], processor: Processor) -> tuple[int, float]:
    """Return the peak of a run and its seconds, without one-time work.

    On a GPU a first run compiles, and leaves the workspaces that libraries keep; on a CPU the profiler's first start
    takes longer than most runs.
    """
    gc.collect()
    peak_of(run if processor.kind == "cuda" else lambda: None, processor.kind)
    start = time.perf_counter()
    return peak_of(run, processor.kind), time.perf_counter() - start


def _too_much(predicted: int, shape: AttentionShape, processor: Processor) -> str | None:
    needed, free = predicted + input_bytes(shape), usable_bytes(processor)
    return None if needed <= free else f"{bytes_text(needed)} predicted, {bytes_text(free)} may be asked for"


def _too_long(expected: float, seconds: float) -> str | None:
    """Return a reason if a run would take longer than allowed; its seconds are rounded up, to stay above the limit."""
    if expected <= seconds:
        return None
    return f"would take about {math.ceil(10 * expected) / 10:g} s, more than --seconds {seconds:g}"


def _work(shape: AttentionShape) -> int:
    return shape.batch * shape.heads * shape.seq_q * shape.seq_kv


def score_sheet(shapes: Sequence[AttentionShape]) -> Sheet:
    matrices = [score_matrix(shape) for shape in shapes]
    rows = tuple((m.shape.seq_q, f"{m.of_head // 1024:,} KB", f"{m.total / 2**20:,.1f} MB") for m in matrices)
    shape = shapes[0]
    all_heads = f"all {shape.batch * shape.heads} heads" if shape.batch == 1 else f"batch {shape.batch} x {shape.heads}"
    columns = (sheets.number("S", ""), sheets.number("per head"), sheets.number(all_heads))
    return Sheet(f"The matrix of scores, {shape.dtype}", columns, rows, ("KB and MB here are 2^10 and 2^20 bytes",))


def peak_sheet(peaks: Sequence[Peak], how: str) -> Sheet:
    rows, absent = [], {}
    for name in dict.fromkeys(peak.name for peak in peaks):
        own = [peak for peak in peaks if peak.name == name]
        if all(peak.measured is None for peak in own) and len({peak.reason for peak in own}) == 1:
            absent[name] = own[0].reason
            continue
        for peak in own:
            ratio = None if peak.measured is None else peak.measured / peak.predicted
            measured = f"not run: {peak.reason}" if peak.measured is None else bytes_text(peak.measured)
            rows.append((name, peak.shape.seq_q, peak.predicted, measured, ratio))
    columns = (
        *(sheets.text("implementation"), sheets.number("S", ""), sheets.size("predicted")),
        *(sheets.number("measured"), sheets.number("measured / predicted", ".3f")),
    )
    notes = (f"measured by {how}", *absence_lines({"": absent}))
    return Sheet("Peak memory beside q, k and v", columns, tuple(rows), notes)
