"""Judgement of a config's numbers: against fp64, by the error that eager torch makes in the same type."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import BaselineUnavailableError
from autotune.implementation import Kernel
from autotune.operation import Definition, RelativeDefinition
from autotune.space import Config
from autotune.trial import Status

if TYPE_CHECKING:
    import torch

DATA: Final = ("normal", "large", "tails")
TOLERATED: Final = 4.0  # times the error that a config of ours may have, in a baseline
TF32_EPS: Final = 2.0**-10  # of ten bits of mantissa
UNITS: Final = 2.0  # in the last place of the largest reference: the floor of an output's error
# That of a statistic such as the log-sum-exp: a softmax in base 2 rounds every score three times more than eager torch,
# by the scale, the change of base and the change back, each by up to half a unit of the largest score.
STATISTIC_UNITS: Final = 16.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A status, a message, and the error and limit of the output nearest to its limit, or furthest past it."""

    status: Status
    message: str = ""
    error: float | None = None
    error_limit: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of an operation, the fp64 reference of every output, and the largest absolute error each may have."""

    name: str
    definition: Definition
    inputs: Any
    references: "tuple[torch.Tensor, ...]"
    limits: tuple[float, ...]
    note: str = ""  # what a verdict says where nothing is wrong

    def empty_outputs(self, *, every_output: bool) -> "tuple[torch.Tensor, ...]":
        """Allocate outputs filled with NaN: the first alone, as most callers want it, or all of them."""
        outputs = self.definition.empty_outputs(self.inputs)
        return outputs if every_output else outputs[:1]


def make_cases(
    definition: Definition, shapes: Sequence[Any], *, device: str, seed: int = 0, products: str = ""
) -> list[Case]:
    """Make the cases that a config must pass before it is timed: three data sets of the first shape, one of others.

    ``shapes`` are an implementation's ``check_shapes`` or else the definition's: small problems, one of them off every
    tile's multiple. ``products`` is the type that the operation multiplies in (``roofline.product_dtype``).
    """
    main, *others = shapes
    problems = [(main, data) for data in DATA] + [(other, "normal") for other in others]
    return [
        make_case(definition, problem, data, device=device, seed=seed, products=products) for problem, data in problems
    ]


def make_case(definition: Definition, shape: Any, data: str, *, device: str, seed: int, products: str = "") -> Case:
    """Draw inputs, compute every output in fp64, and bound its error by eager torch's in the same type.

    Where ``products`` is ``"tf32"`` eager torch may round them to TF32, too, and units are TF32's.
    """
    inputs = definition.make_inputs(shape, seed=seed, device=device, data=data)
    references = definition.reference(inputs)
    dtypes = [output.dtype for output in definition.empty_outputs(inputs)]
    relative = definition if isinstance(definition, RelativeDefinition) else None
    usual = None if relative is None else relative.units
    is_rounded = products == "tf32"
    with _products_in_tf32() if is_rounded else contextlib.nullcontext():
        eager = {dtype: definition.reference(inputs, dtype=dtype) for dtype in dict.fromkeys(dtypes)}
    least_eps = TF32_EPS if is_rounded else 0.0
    units = [usual or (STATISTIC_UNITS if index else UNITS) for index in range(len(dtypes))]
    first, *others = (
        error_limit(reference, eager[dtype][index], dtype, units=units[index], least_eps=least_eps)
        for index, (reference, dtype) in enumerate(zip(references, dtypes, strict=True))
    )
    slack = definition.statistic_slack(inputs)
    limits = (first, *(limit + slack for limit in others))
    return Case(f"{data} {shape}", definition, inputs, references, limits, "" if relative is None else relative.note)


@contextlib.contextmanager
def _products_in_tf32() -> Iterator[None]:
    """Allow torch to round the operands of float32 products to TF32, where the device does."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def error_limit(
    reference: "torch.Tensor",
    eager: "torch.Tensor",
    dtype: "torch.dtype",
    *,
    units: float = UNITS,
    least_eps: float = 0.0,
) -> float:
    """Return twice eager's largest error in the same type, plus some units in the last place of max |reference|.

    The factor is that of FlashAttention's own tests (Dao-AILab/flash-attention, tests/test_flash_attn.py); the floor is
    there because eager's error can be exactly 0. A unit is that of the type, or of ``least_eps`` where that is coarser.
    """
    import torch

    finite = reference[reference.isfinite()]
    if finite.numel() == 0:
        return 0.0
    largest = finite.abs().max().item()
    is_exact = largest == 0.0 or not dtype.is_floating_point
    eps = 0.0 if is_exact else max(torch.finfo(dtype).eps, least_eps)
    unit = math.ldexp(eps, math.frexp(largest)[1] - 1)
    return 2.0 * largest_error(eager, reference) + units * unit


def check_config(kernel: Kernel, config: Config, cases: Sequence[Case], *, every_output: bool = False) -> Verdict:
    """Run a config on every case; the first that fails decides. Exceptions of the launch are the caller's.

    With ``every_output`` those outputs are computed and judged, too, that a user gets on request alone.
    """
    worst = Verdict(Status.OK, next((case.note for case in cases), ""), error=0.0, error_limit=0.0)
    for case in cases:
        outputs = case.empty_outputs(every_output=every_output)
        kernel.launch(config, case.inputs, outputs)
        verdict = judge(outputs, case)
        if verdict.status is not Status.OK:
            return verdict
        if _closeness(verdict) >= _closeness(worst):
            worst = replace(verdict, message=worst.message)
    return worst


def judge(outputs: "Sequence[torch.Tensor]", case: Case) -> Verdict:
    """Compare outputs, all or the first, with a case's references: NaN first, then infinities, then the error."""
    worst = Verdict(Status.OK, error=0.0, error_limit=0.0)
    for index, (output, reference, limit) in enumerate(zip(outputs, case.references, case.limits, strict=False)):
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
    """Return the largest error of a baseline's output, and the limit that configs of ours have.

    BaselineUnavailableError where it is so far off that it computes something else.
    """
    error, limit = largest_error(output, case.references[0]), case.limits[0]
    if error > TOLERATED * limit:
        raise BaselineUnavailableError(f"largest error {error:.3g} exceeds {TOLERATED:g} times {limit:.3g}")
    return error, limit


def _closeness(verdict: Verdict) -> float:
    return (verdict.error or 0.0) / verdict.error_limit if verdict.error_limit else 0.0


def largest_error(output: "torch.Tensor", reference: "torch.Tensor") -> float:
    """Return the largest absolute difference; equal infinities agree, others and NaN are infinitely wrong."""
    import torch

    if output.numel() == 0:
        return 0.0
    difference = (output.to(reference.dtype) - reference).abs()
    difference = torch.where(output == reference, torch.zeros_like(difference), difference)  # inf - inf is NaN
    return float(torch.nan_to_num(difference, nan=math.inf, posinf=math.inf).max().item())
