"""How a config's numbers are judged: against fp64, by the error that eager torch makes in the same type."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import BaselineUnavailableError
from autotune.operation import Kernel
from autotune.space import Config
from autotune.trial import Status

if TYPE_CHECKING:
    import torch

DATA: Final = ("normal", "large", "tails")
TOLERATED: Final = 4.0  # times the error that a config of ours may have, in a baseline


@dataclass(frozen=True, slots=True)
class Verdict:
    """Status, message, and of the output nearest to its limit (or furthest past it) the error and the limit."""

    status: Status
    message: str = ""
    error: float | None = None
    error_limit: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs, the fp64 reference of each output, and the largest absolute error each may have."""

    name: str
    inputs: Any
    references: "tuple[torch.Tensor, ...]"
    limits: tuple[float, ...]


def make_cases(kernel: Kernel, shape: Any, *, device: str, seed: int = 0) -> list[Case]:
    """The cases that a config must pass before it is timed: three data sets, and a length off every tile's multiple."""
    main, *others = kernel.check_shapes(shape)
    problems = [(main, data) for data in DATA] + [(other, "normal") for other in others]
    return [make_case(kernel, problem, data, device=device, seed=seed) for problem, data in problems]


def make_case(kernel: Kernel, shape: Any, data: str, *, device: str, seed: int) -> Case:
    """One case with its reference and limits computed."""
    inputs = kernel.make_inputs(shape, seed=seed, device=device, data=data)
    references = kernel.reference(inputs)
    outputs = kernel.empty_output(inputs)
    limits = tuple(
        error_limit(reference, kernel.reference(inputs, dtype=output.dtype)[index], output.dtype)
        for index, (reference, output) in enumerate(zip(references, outputs, strict=True))
    )
    return Case(f"{data} {shape}", inputs, references, limits)


def error_limit(reference: "torch.Tensor", eager: "torch.Tensor", dtype: "torch.dtype") -> float:
    """Twice eager's largest error in the same type, plus two units in the last place of max |reference|.

    The factor is that of FlashAttention's own tests (Dao-AILab/flash-attention, tests/test_flash_attn.py); the floor is
    there because eager's error can be exactly 0.
    """
    import torch

    finite = reference[reference.isfinite()]
    if finite.numel() == 0:
        return 0.0
    largest = finite.abs().max().item()
    unit = 0.0 if largest == 0.0 else math.ldexp(torch.finfo(dtype).eps, math.frexp(largest)[1] - 1)
    return 2.0 * largest_error(eager, reference) + 2.0 * unit


def check_config(kernel: Kernel, config: Config, cases: Sequence[Case]) -> Verdict:
    """Run a config on every case; the first that fails decides. Exceptions of the launch are the caller's."""
    worst = Verdict(Status.OK, error=0.0, error_limit=0.0)
    for case in cases:
        outputs = kernel.empty_output(case.inputs)
        kernel.launch(config, case.inputs, outputs)
        verdict = judge(outputs, case)
        if verdict.status is not Status.OK:
            return verdict
        if _closeness(verdict) >= _closeness(worst):
            worst = verdict
    return worst


def judge(outputs: "Sequence[torch.Tensor]", case: Case) -> Verdict:
    """Compare outputs with a case's references: NaN first, then infinities, then the largest error."""
    worst = Verdict(Status.OK, error=0.0, error_limit=0.0)
    for index, (output, reference, limit) in enumerate(zip(outputs, case.references, case.limits, strict=True)):
        where = f"output {index} on {case.name}"
        nans = int(output.isnan().sum())
        if nans:
            return Verdict(Status.NAN_RESULT, f"{nans} of {output.numel()} elements are NaN: {where}", None, limit)
        error = largest_error(output, reference)
        if error > limit:
            message = f"largest error {error:.3g} exceeds {limit:.3g}: {where}"
            return Verdict(Status.WRONG_RESULT, message, error if math.isfinite(error) else None, limit)
        verdict = Verdict(Status.OK, error=error, error_limit=limit)
        if _closeness(verdict) >= _closeness(worst):
            worst = verdict
    return worst


def check_baseline(output: "torch.Tensor", case: Case) -> tuple[float, float]:
    """The largest error of a baseline's output, and what a config of ours may have.

    Raises:
        BaselineUnavailableError: it is so far off that it computes something else.
    """
    error, limit = largest_error(output, case.references[0]), case.limits[0]
    if error > TOLERATED * limit:
        raise BaselineUnavailableError(f"largest error {error:.3g} exceeds {TOLERATED:g} times {limit:.3g}")
    return error, limit


def _closeness(verdict: Verdict) -> float:
    return (verdict.error or 0.0) / verdict.error_limit if verdict.error_limit else 0.0


def largest_error(output: "torch.Tensor", reference: "torch.Tensor") -> float:
    """The largest absolute difference; equal infinities agree, others and NaN are infinitely wrong."""
    import torch

    if output.numel() == 0:
        return 0.0
    difference = (output.to(reference.dtype) - reference).abs()
    difference = torch.where(output == reference, torch.zeros_like(difference), difference)  # inf - inf is NaN
    return float(torch.nan_to_num(difference, nan=math.inf, posinf=math.inf).max().item())
