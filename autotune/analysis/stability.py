"""Do numbers survive? NaN, infinities and errors of every implementation over inputs that strain a softmax."""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autotune.analysis.disturbances import CASES, disturb
from autotune.analysis.processor import Kind
from autotune.comparison import OURS
from autotune.correctness import error_limit, largest_error
from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.errors import UsageError, one_line
from autotune.operation import Baseline, Kernel, Operation
from autotune.registry import load_kernel
from autotune.shape import Shape


@dataclass(frozen=True, slots=True)
class Finding:
    """What one implementation made of one case: the first output's elements that are NaN or infinite, and its range.

    ``error`` is the largest absolute one against fp64, infinite where an element is. ``limit`` is what the error of
    eager torch in the same dtype allows (``correctness.error_limit``), infinite where eager itself overflows.
    ``low`` and ``high`` are those of the finite elements, None where there are none. ``message`` says why there is no
    output.
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
        """``ok``; ``finite`` where eager's overflow leaves no limit; or what is wrong."""
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
        """Whether a kernel of ours would be wrong here: not a number, not finite, over its limit, or without output."""
        return self.name == OURS and self.verdict not in ("ok", "finite")


@dataclass(frozen=True, slots=True)
class Stability:
    """All findings on one problem, case by case, and what did not take part with its reason."""

    operation: str
    shape: Shape
    findings: tuple[Finding, ...]
    absent: tuple[tuple[str, str], ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_failure)


def examine(
    operation: Operation[Any],
    shape: Shape,
    names: Sequence[str],
    *,
    kind: Kind,
    seed: int = 0,
    on_case: Callable[[str], object] = lambda case: None,
) -> Stability:
    """Run the baselines of these names, and on a GPU what ``get_kernel`` serves, over every case.

    Without a GPU ours runs under ``TRITON_INTERPRET=1`` alone, in fp16 and fp32: Triton's interpreter computes bf16 on
    raw bits. Its outputs are filled with NaN beforehand, so that an element which nobody wrote is found. ``on_case`` is
    told the name of each case that begins; where nobody can run, none does.

    Raises:
        UsageError: the cache is quantized.
        InvalidShapeError: the operation does not support the shape.
    """
    _require_unquantized(shape)
    kernel = load_kernel(operation.name)
    runners: list[tuple[str, Callable[[Any], torch.Tensor]]] = []
    absent: list[tuple[str, str]] = []
    if (reason := _why_not_ours(shape, kind)) is None:
        runners.append((OURS, _served(operation, kernel, shape, kind)))
    else:
        absent.append((OURS, reason))
    for baseline in kernel.baselines():
        if baseline.name not in names:
            continue
        if (reason := baseline.available() or baseline.unsupported(shape)) is not None:
            absent.append((baseline.name, reason))
        else:
            runners.append((baseline.name, _prepared(baseline, shape)))
    findings: list[Finding] = []
    for case in CASES if runners else ():
        on_case(case)
        findings += _examine_case(kernel, shape, case, runners, kind=kind, seed=seed)
    return Stability(operation.name, shape, tuple(findings), tuple(absent))


def _examine_case(
    kernel: Kernel,
    shape: Shape,
    case: str,
    runners: Sequence[tuple[str, Callable[[Any], torch.Tensor]]],
    *,
    kind: Kind,
    seed: int,
) -> Iterator[Finding]:
    inputs = disturb(kernel.make_inputs(shape, seed=seed, device=kind), case, seed=seed + 1)
    reference = kernel.reference(inputs)[0]
    dtype = kernel.empty_output(inputs)[0].dtype
    limit = error_limit(reference, kernel.reference(inputs, dtype=dtype)[0], dtype)
    for name, run in runners:
        try:
            with warnings.catch_warnings():  # a backend that refuses says so in warnings, and raises
                warnings.simplefilter("ignore")
                out = run(inputs)
        except Exception as failure:  # backends, compilers and libraries have no exception in common
            message = one_line(failure)
            yield Finding(case, name, limit=limit, message=message)
        else:
            yield judge(case, name, out, reference, limit)


def judge(case: str, name: str, out: torch.Tensor, reference: torch.Tensor, limit: float) -> Finding:
    """Count and compare an output with its fp64 reference of the same sizes."""
    finite = out[out.isfinite()]
    low, high = (float(bound) for bound in finite.aminmax()) if finite.numel() else (None, None)
    return Finding(
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


def _served(operation: Operation[Any], kernel: Kernel, shape: Shape, kind: Kind) -> Callable[[Any], torch.Tensor]:
    config = get_kernel(shape, device=None if kind == "cuda" else NVIDIA_H200.name, operation=operation.name).config

    def run(inputs: Any) -> torch.Tensor:
        outputs = kernel.empty_output(inputs)
        kernel.launch(config, inputs, outputs)
        return outputs[0]

    return run


def _require_unquantized(shape: Shape) -> None:
    """Refuse before anything is made what ``disturb`` refuses of the inputs."""
    kv_dtype = shape.as_dict().get("kv_dtype")
    if kv_dtype is not None and getattr(torch, str(kv_dtype)).itemsize == 1:
        raise UsageError(f"kv_dtype={kv_dtype!r}: disturbed inputs are of 16 or 32 bits, expected kv_dtype as dtype")


def _why_not_ours(shape: Shape, kind: Kind) -> str | None:
    """Why kernels of ours do not run here, or None."""
    if kind == "cuda":
        return None
    if os.environ.get("TRITON_INTERPRET") != "1":
        return "kernels of ours need a CUDA or ROCm GPU (TRITON_INTERPRET=1 checks fp16 and fp32 without one)"
    if shape.as_dict()["dtype"] == "bfloat16":
        return "Triton's interpreter computes bfloat16 on raw bits; expected float16 or float32"
    return None
