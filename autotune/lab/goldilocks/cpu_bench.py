"""Points of a goldilocks study on this machine's processor: baselines at each precision, one after another."""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from autotune.correctness import largest_error
from autotune.errors import MissingDependencyError, one_line
from autotune.lab.bench.machines import CpuMachine
from autotune.lab.goldilocks.exploration import (
    IMPLEMENTATION,
    PRECISION,
    PointBench,
    PointResult,
    at_precision,
    check_shape,
    kv_bytes,
    precisions,
)
from autotune.operation import Baseline, Operation
from autotune.registry import load_baselines, load_definition
from autotune.shape import Shape
from autotune.space import Config, Parameter


class CpuBench(PointBench):
    """Measures points over the baselines of these names, in torch's threads as they are set.

    The inputs of all precisions are one draw, rounded; errors are against fp64 over the draw itself. What an axis holds
    that nothing here computes is left out; MissingDependencyError where none of the baselines runs.
    """

    def __init__(self, operation: Operation[Any], shape: Shape, names: Sequence[str], *, seed: int = 0) -> None:
        check_shape(shape)
        self._definition = load_definition(operation.name)
        self._shape, self._seed = shape, seed
        known = [baseline for baseline in load_baselines(operation.name) if baseline.name in names]
        reasons = {baseline.name: self._why_not(baseline) for baseline in known}
        self.absent = tuple((name, reason) for name, reason in reasons.items() if reason is not None)
        here = [baseline for baseline in known if reasons[baseline.name] is None]
        if not here:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.absent)
            raise MissingDependencyError(f"no baseline of {operation.name} runs on this processor: {why}")
        # The usual ones are ready at once; what compiles for seconds comes last.
        here.sort(key=lambda baseline: (not baseline.is_usual, baseline.name))
        self._baselines = {baseline.name: baseline for baseline in here}
        forms = {name: at_precision(shape, name) for name in precisions(shape)}
        usable = [name for name, form in forms.items() if any(each.unsupported(form) is None for each in here)]
        self.parameters = (Parameter(IMPLEMENTATION, tuple(self._baselines)), Parameter(PRECISION, tuple(usable)))
        self._machine = CpuMachine()
        self.device = self._machine.name
        exact = self._definition.make_inputs(at_precision(shape, precisions(shape)[0]), seed=seed, device="cpu")
        self._truth = self._definition.reference(exact)[0]

    def reject(self, point: Config) -> str | None:
        baseline = self._baselines[str(point[IMPLEMENTATION])]
        return baseline.unsupported(at_precision(self._shape, str(point[PRECISION])))

    def measure(self, points: Sequence[Config]) -> Iterator[PointResult]:
        for point in points:
            shape = at_precision(self._shape, str(point[PRECISION]))
            found = PointResult(point, kv_bytes(shape))
            try:
                with warnings.catch_warnings(action="ignore"):  # a backend that refuses says so there, and raises
                    yield self._measure(found, self._baselines[str(point[IMPLEMENTATION])], shape)
            except Exception as failure:  # backends, compilers and libraries have no exception in common
                message = one_line(failure)
                yield replace(found, message=message)

    def _measure(self, found: PointResult, baseline: Baseline, shape: Shape) -> PointResult:
        inputs = self._definition.make_inputs(shape, seed=self._seed, device="cpu")
        call, held = self._machine.hold(lambda: baseline.prepare(shape, inputs))
        error = largest_error(call(), self._truth)
        if not math.isfinite(error):
            return replace(found, message="its result is not finite")
        extra = self._machine.extra_bytes(call, prepared=held)
        return replace(
            found, timing=self._machine.time({baseline.name: call})[baseline.name], extra_bytes=extra, error=error
        )

    def _why_not(self, baseline: Baseline) -> str | None:
        """Return the reason why a baseline runs in no precision here, or None."""
        if (reason := baseline.available()) is not None:
            return reason
        reasons = [baseline.unsupported(at_precision(self._shape, name)) for name in precisions(self._shape)]
        return None if None in reasons else reasons[0]
