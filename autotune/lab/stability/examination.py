"""Count NaN and infinities and judge the errors of every implementation over inputs that strain a softmax."""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from autotune import sheets
from autotune.correctness import largest_error
from autotune.errors import UsageError, one_line
from autotune.lab.bench.comparison import OURS
from autotune.lab.bench.entrants import judge_inputs
from autotune.lab.machine.processor import ProcessorKind
from autotune.lab.machine.subjects import chosen_baselines, prepare_served
from autotune.lab.stability.disturbances import CASES, disturb
from autotune.operation import Baseline, Definition, Operation
from autotune.registry import load_definition
from autotune.shape import Shape
from autotune.sheets import Sheet


@dataclass(frozen=True, slots=True)
class CaseFinding:
    """The result of one implementation in one case: the first output's NaN and infinite elements, and its range.

    ``error`` is the largest absolute one against fp64, infinite where an element is. ``limit`` is what the error of
    eager torch in the same dtype allows (``correctness.error_limit``), infinite where eager itself overflows.
    ``low`` and ``high`` are those of the finite elements, None where there are none. ``message`` is the reason for a
    missing output.
    """

    case: str
    name: str
    nans: int = 0
    infinities: int = 0
    error: float | None = None
    limit: float = math.inf
    low: float | None = None
    high: float | None = None
    message: str = ""

    @property
    def verdict(self) -> str:
        """``ok``; ``finite`` where eager's overflow leaves no limit; or the failure."""
        if self.error is None:
            return self.message
        if self.nans:
            return "NaN"
        if self.infinities:
            return "infinite"
        if self.limit == math.inf:
            return "finite"
        return "over the limit" if self.error > self.limit else "ok"

    @property
    def is_failure(self) -> bool:
        """Ours failed: its output is not a number, not finite, over its limit, or missing."""
        return self.name == OURS and self.verdict not in ("ok", "finite")


@dataclass(frozen=True, slots=True)
class Stability:
    """All findings for one shape, case by case, and the reasons of what did not take part."""

    operation: str
    shape: Shape
    findings: tuple[CaseFinding, ...]
    absent: tuple[tuple[str, str], ...]

    @property
    def failures(self) -> tuple[CaseFinding, ...]:
        return tuple(finding for finding in self.findings if finding.is_failure)


def examine(
    operation: Operation[Any],
    shape: Shape,
    names: Sequence[str],
    *,
    kind: ProcessorKind,
    seed: int = 0,
    on_case: Callable[[str], object] = lambda case: None,
) -> Stability:
    """Run the baselines of these names, and on a GPU what ``get_kernel`` serves, over every case.

    Without a GPU ours runs under ``TRITON_INTERPRET=1`` alone, in fp16 and fp32: Triton's interpreter computes bf16 on
    raw bits. Its outputs are filled with NaN beforehand, so that an element that was not written is found. ``on_case``
    is called with the name of each case before it; where nothing can run, no case begins. UsageError for a quantized
    cache, InvalidShapeError for a shape that the operation does not support.
    """
    _require_unquantized(shape)
    definition = load_definition(operation.name)
    runners: list[tuple[str, Callable[[Any], torch.Tensor]]] = []
    absent: list[tuple[str, str]] = []
    if (reason := _why_not_ours(shape, kind)) is None:
        is_cpu = kind != "cuda"
        runners.append((OURS, lambda inputs: prepare_served(operation.name, shape, inputs, is_interpreted=is_cpu)()))
    else:
        absent.append((OURS, reason))
    for baseline, reason in chosen_baselines(operation.name, shape, names):
        if reason is not None:
            absent.append((baseline.name, reason))
        else:
            runners.append((baseline.name, _prepared(baseline, shape)))
    findings: list[CaseFinding] = []
    for case in CASES if runners else ():
        on_case(case)
        findings += _examine_case(definition, shape, case, runners, kind=kind, seed=seed)
    return Stability(operation.name, shape, tuple(findings), tuple(absent))


def _examine_case(
    definition: Definition,
    shape: Shape,
    case: str,
    runners: Sequence[tuple[str, Callable[[Any], torch.Tensor]]],
    *,
    kind: ProcessorKind,
    seed: int,
) -> Iterator[CaseFinding]:
    inputs = disturb(definition.make_inputs(shape, seed=seed, device=kind), case, seed=seed + 1)
    judged = judge_inputs(definition, inputs)
    (reference,), (limit,) = judged.references, judged.limits
    for name, run in runners:
        try:
            with warnings.catch_warnings(action="ignore"):  # a backend that refuses says so there, and raises
                out = run(inputs)
        except Exception as failure:  # backends, compilers and libraries have no exception in common
            message = one_line(failure)
            yield CaseFinding(case, name, limit=limit, message=message)
        else:
            yield judge(case, name, out, reference, limit)


def judge(case: str, name: str, out: torch.Tensor, reference: torch.Tensor, limit: float) -> CaseFinding:
    """Count and compare an output with its fp64 reference of the same sizes."""
    finite = out[out.isfinite()]
    low, high = (float(bound) for bound in finite.aminmax()) if finite.numel() else (None, None)
    return CaseFinding(
        case,
        name,
        nans=int(out.isnan().sum()),
        infinities=int(out.isinf().sum()),
        error=largest_error(out, reference),
        limit=limit,
        low=low,
        high=high,
    )


def _prepared(baseline: Baseline, shape: Shape) -> Callable[[Any], torch.Tensor]:
    return lambda inputs: baseline.prepare(shape, inputs)()


def _require_unquantized(shape: Shape) -> None:
    kv_dtype = shape.as_dict().get("kv_dtype")
    if kv_dtype is not None and getattr(torch, str(kv_dtype)).itemsize == 1:
        raise UsageError(f"kv_dtype={kv_dtype!r}: disturbed inputs are of 16 or 32 bits, expected kv_dtype as dtype")


def _why_not_ours(shape: Shape, kind: ProcessorKind) -> str | None:
    if kind == "cuda":
        return None
    if os.environ.get("TRITON_INTERPRET") != "1":
        return "kernels of ours need a CUDA or ROCm GPU (TRITON_INTERPRET=1 checks fp16 and fp32 without one)"
    if shape.as_dict()["dtype"] == "bfloat16":
        return "Triton's interpreter computes bfloat16 on raw bits; expected float16 or float32"
    return None


COLUMNS: Final = (
    *(sheets.text("case"), sheets.text("implementation"), sheets.number("NaN"), sheets.number("Inf")),
    *(sheets.number(name, ".3g") for name in ("error", "limit", "lowest", "highest")),
    sheets.text("verdict"),
)


def stability_sheet(stability: Stability) -> Sheet:
    """Return a row for each case and implementation that ran; the case is named once."""
    rows, last = [], ""
    for finding in stability.findings:
        rows.append(_row(finding, "" if finding.case == last else finding.case))
        last = finding.case
    notes = ["limit: twice the error of eager torch in the same dtype, plus two units in the last place"]
    if any(finding.limit == math.inf for finding in stability.findings):
        notes.append("finite: eager torch overflows there, so that its error limits nothing")
    return Sheet(f"{stability.operation}: {stability.shape}", COLUMNS, tuple(rows), tuple(notes))


def failure_lines(stability: Stability) -> list[str]:
    return [f"autotune is wrong on {found.case!r}: {found.verdict}" for found in stability.failures]


def stability_data(stability: Stability) -> dict[str, Any]:
    """Return plain data for ``--json``; infinite errors and limits are null."""
    return {
        "operation": stability.operation,
        "shape": stability.shape.as_dict(),
        "is_stable": bool(stability.findings) and not stability.failures,
        "findings": [_finding_data(found) for found in stability.findings],
        "absent": dict(stability.absent),
    }


def _finding_data(found: CaseFinding) -> dict[str, Any]:
    names = ("case", "name", "nans", "infinities", "low", "high", "verdict")
    bounds = {"error": _finite(found.error), "error_limit": _finite(found.limit)}
    return {name: getattr(found, name) for name in names} | bounds


def _row(found: CaseFinding, case: str) -> tuple[object, ...]:
    limit = "none" if found.limit == math.inf else found.limit
    if found.error is None:
        return (case, found.name, None, None, None, limit, None, None, found.verdict)
    return (case, found.name, found.nans, found.infinities, found.error, limit, found.low, found.high, found.verdict)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
