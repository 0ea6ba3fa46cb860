"""Search implementations, KV precisions and launch parameters for those that are best in time, memory and error."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from autotune.dtypes import ITEM_BYTES, KV_ITEM_BYTES, QUERY_DTYPES
from autotune.errors import MissingDependencyError, UsageError
from autotune.lab.bench.comparison import OURS
from autotune.operation import Operation, ShapeT
from autotune.search.importance import EVALUATORS, Evaluator
from autotune.search.pareto import MIN_POINTS, ParetoStudy, hypervolume, sensitivity
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.space import Config, Parameter
from autotune.trial import Timing

IMPLEMENTATION: Final = "implementation"
PRECISION: Final = "precision"
OBJECTIVES: Final = ("time", "memory", "error")
BEYOND: Final = 1.1  # times the worst of each objective: where the reference point of the hypervolume lies
LEAST_ERROR: Final = 1e-12  # what an error of 0 counts as, where its logarithm is taken
INT8_SCALE_BYTES: Final = 4  # fp32, of each token's key and value, and KV head
FRONT: Final = "all three"  # the objective that PED-ANOVA has in the front


@dataclass(frozen=True, slots=True)
class PointResult:
    """A point and its measurements, or the reason why it has no time.

    ``kv_bytes`` is what the keys and values take as they are stored, ``extra_bytes`` the most that a call holds beside
    its inputs and its result, with what is kept for it between calls. ``error`` is the largest absolute one against
    fp64 over inputs that were not rounded.
    """

    point: Config
    kv_bytes: int
    timing: Timing | None = None
    extra_bytes: int | None = None
    error: float | None = None
    message: str = ""

    @property
    def objectives(self) -> tuple[float, float, float] | None:
        """Microseconds, bytes and error; None unless all three are known."""
        if self.timing is None or self.extra_bytes is None or self.error is None:
            return None
        return (self.timing.median_us, float(self.kv_bytes + self.extra_bytes), self.error)


class PointBench(ABC):
    """Measures points on a ``device``, over ``parameters``.

    ``first`` are points to begin with, ``batch`` is the number that is best measured together, ``absent`` are the
    implementations that do not run here, with the reason.
    """

    parameters: tuple[Parameter, ...]
    first: tuple[Config, ...] = ()
    absent: tuple[tuple[str, str], ...]
    device: str
    batch: int = 1

    @abstractmethod
    def reject(self, point: Config) -> str | None:
        """Return the reason why a point cannot be measured, or None."""

    @abstractmethod
    def measure(self, points: Sequence[Config]) -> Iterator[PointResult]:
        """Measure the points one after another; failures are results, too."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The shares of the axes in one objective by one evaluator, over all points or those of one implementation."""

    evaluator: Evaluator
    objective: str
    scope: str
    points: int
    shares: dict[str, float]


@dataclass(frozen=True, slots=True)
class Exploration:
    """Everything that was measured, its front and its sensitivities.

    ``front`` are the points that none beats in every objective, fastest first. ``volume`` is the volume that they
    dominate below ``reference`` (microseconds, bytes, error), in cubic decades: over the common logarithms of the
    objectives. ``size`` is the number of valid points. ``missing`` lists sensitivities that could not be computed, with
    reasons. ``is_interrupted``: Ctrl-C ended it, and it holds what was measured before.
    """

    operation: str
    shape: Shape
    device: str
    parameters: tuple[Parameter, ...]
    size: int
    measured: tuple[PointResult, ...]
    front: tuple[PointResult, ...]
    reference: tuple[float, ...]
    volume: float
    sensitivities: tuple[Sensitivity, ...]
    missing: tuple[str, ...]
    absent: tuple[tuple[str, str], ...]
    is_interrupted: bool = False


def explore(
    operation: Operation[Any],
    shape: Shape,
    bench: PointBench,
    *,
    trials: int,
    seconds: float,
    seed: int = 0,
    on_measured: Callable[[PointResult], object] = lambda measured: None,
) -> Exploration:
    """Measure up to ``trials`` points, and begin none after so many seconds; Ctrl-C ends it with those that it has.

    The study sees the logarithms of the objectives: a front is the same, and its sampler sees ratios.
    """
    study = ParetoStudy(
        bench.parameters, bench.reject, objectives=len(OBJECTIVES), budget=trials, first=bench.first, seed=seed
    )
    measured: list[PointResult] = []
    is_interrupted = False
    try:
        for found in _measure(study, bench, trials=trials, seconds=seconds):
            measured.append(found)
            on_measured(found)
    except KeyboardInterrupt:
        is_interrupted = True
    reference, volume = _dominated(measured)
    sensitivities, missing = _sensitivities(bench.parameters, measured)
    return Exploration(
        operation.name,
        shape,
        bench.device,
        bench.parameters,
        study.size,
        tuple(measured),
        _front(study, measured),
        reference,
        volume,
        tuple(sensitivities),
        tuple(missing),
        bench.absent,
        is_interrupted,
    )


def _front(study: ParetoStudy, measured: Sequence[PointResult]) -> tuple[PointResult, ...]:
    by_point = {found.point: found for found in measured}
    known = (by_point[point] for point in study.front() if point in by_point)  # an interrupt may fall between the two
    return tuple(sorted(known, key=lambda found: found.objectives or ()))


def _measure(study: ParetoStudy, bench: PointBench, *, trials: int, seconds: float) -> Iterator[PointResult]:
    deadline = time.monotonic() + seconds
    count = 0
    while count < trials and time.monotonic() < deadline:
        asked = [study.ask() for _ in range(min(bench.batch, trials - count))]
        points = [point for point in asked if point is not None]
        if not points:
            return
        for found in bench.measure(points):
            values = found.objectives
            study.tell(found.point, None if values is None else logarithms(values))
            count += 1
            yield found


def logarithms(values: Sequence[float]) -> tuple[float, ...]:
    """Return the common logarithms of the objectives; an error of 0 counts as 1e-12."""
    return tuple(math.log10(max(value, LEAST_ERROR)) for value in values)


def check_shape(shape: Shape) -> None:
    """Raise UsageError for a shape whose precision cannot be varied: neither dense nor paged attention."""
    if not isinstance(shape, AttentionShape | PagedShape):
        raise UsageError(f"shape={shape!r}: goldilocks varies the precision of an AttentionShape or a PagedShape")


def precisions(shape: Shape) -> tuple[str, ...]:
    """List the precisions to search, most exact first: of dense tensors all, of a paged cache its own and 8 bits, of
    latents their own."""
    if isinstance(shape, PagedShape):
        if shape.is_latent:
            return (shape.dtype,)
        return (shape.dtype, *(name for name, size in KV_ITEM_BYTES.items() if size == 1))
    return tuple(sorted(QUERY_DTYPES, key=lambda name: (-ITEM_BYTES[name], name)))


def at_precision(shape: ShapeT, precision: str) -> ShapeT:
    """Return the shape in that precision: of dense attention q, k and v, of paged attention the cache."""
    check_shape(shape)
    field = "kv_dtype" if isinstance(shape, PagedShape) else "dtype"
    return replace(shape, **{field: precision})


def kv_bytes(shape: Shape) -> int:
    """Count the bytes of a shape's keys and values, with the scales of an int8 cache.

    Example:
        >>> kv_bytes(PagedShape(batch=1, heads=8, max_context=1024, head_dim=64, kv_dtype="int8"))
        1114112
    """
    check_shape(shape)
    if isinstance(shape, PagedShape):
        rows = shape.batch * shape.mean_context * shape.kv_heads
        scales = 2 * INT8_SCALE_BYTES if shape.kv_dtype == "int8" else 0
        width = shape.head_dim if shape.is_latent else shape.head_dim + shape.head_dim_v
        return rows * (width * KV_ITEM_BYTES[shape.kv_dtype] + scales)
    assert isinstance(shape, AttentionShape)
    rows = shape.batch * shape.seq_kv * shape.kv_heads
    return rows * (shape.head_dim + shape.head_dim_v) * ITEM_BYTES[shape.dtype]


def _dominated(measured: Sequence[PointResult]) -> tuple[tuple[float, ...], float]:
    """Return the reference point, 1.1 times the worst of each objective, and the volume below it."""
    values = [found.objectives for found in measured if found.objectives is not None]
    if not values:
        return (), 0.0
    reference = tuple(BEYOND * max(max(each), LEAST_ERROR) for each in zip(*values, strict=True))
    return reference, hypervolume(map(logarithms, values), logarithms(reference))


def _sensitivities(
    parameters: Sequence[Parameter], measured: Sequence[PointResult]
) -> tuple[list[Sensitivity], list[str]]:
    """Evaluate each objective and the front by each evaluator: over all points, and over those of ours alone."""
    results = {found.point: logarithms(found.objectives) for found in measured if found.objectives is not None}
    scopes = {"every implementation": results}
    if ours := {point: values for point, values in results.items() if point[IMPLEMENTATION] == OURS}:
        scopes[OURS] = ours
    found: list[Sensitivity] = []
    missing: dict[str, None] = {}
    for scope, points in scopes.items():
        if len(points) < MIN_POINTS:
            missing[f"no shares over {scope}: {len(points)} points, fewer than {MIN_POINTS}"] = None
            continue
        for evaluator in EVALUATORS:
            targets: list[tuple[str, int | None]] = [(name, index) for index, name in enumerate(OBJECTIVES)]
            if evaluator == "PED-ANOVA":
                targets.append((FRONT, None))
            for name, index in targets:
                try:
                    shares = sensitivity(parameters, points, evaluator, index)
                except MissingDependencyError as error:
                    missing[str(error)] = None
                    continue
                if shares:
                    found.append(Sensitivity(evaluator, name, scope, len(points), shares))
                else:
                    missing[f"no shares of {name} over {scope} by {evaluator}: the points are all alike"] = None
    return found, list(missing)
