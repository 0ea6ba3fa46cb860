"""Points of a goldilocks study on this machine's processor: baselines at each precision, one after another."""

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from autotune import hardware
from autotune.allocations import extra_bytes
from autotune.analysis.goldilocks import (
    IMPLEMENTATION,
    PRECISION,
    PointResult,
    at_precision,
    check_shape,
    kv_bytes,
    precisions,
)
from autotune.correctness import largest_error
from autotune.errors import MissingDependencyError, one_line
from autotune.operation import Baseline, Operation
from autotune.registry import load_kernel
from autotune.shape import Shape
from autotune.space import Config, Parameter
from autotune.timing import ClockStopwatch, summarize

SAMPLES: Final = 15
SAMPLE_SECONDS: Final = 0.5  # after which no further sample is taken


class CpuBench:
    """Implements ``goldilocks.Bench`` over the baselines of these names, in torch's threads as they are set.

    The inputs of all precisions are one draw, rounded; errors are against fp64 over the draw itself. What an axis holds
    that nothing here computes is left out.

    Raises:
        UsageError: the shape is neither dense nor paged attention.
        MissingDependencyError: none of the baselines runs here.
    """

    batch: Final = 1

    def __init__(self, operation: Operation[Any], shape: Shape, names: Sequence[str], *, seed: int = 0) -> None:
        check_shape(shape)
        self._kernel = load_kernel(operation.name)
        self._shape, self._seed = shape, seed
        known = [baseline for baseline in self._kernel.baselines() if baseline.name in names]
        reasons = {baseline.name: self._why_not(baseline) for baseline in known}
        self.absent = tuple((name, reason) for name, reason in reasons.items() if reason is not None)
        here = [baseline for baseline in known if reasons[baseline.name] is None]
        if not here:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.absent)
            raise MissingDependencyError(f"no baseline of {operation.name} runs on this processor: {why}")
        # The usual ones are ready at once; what compiles for seconds comes last.
        here.sort(key=lambda baseline: (not baseline.is_usual, baseline.name))
        self._baselines = {baseline.name: baseline for baseline in here}
        usable = [name for name in precisions(shape) if any(self._supports(each, name) for each in here)]
        self.parameters = (Parameter(IMPLEMENTATION, tuple(self._baselines)), Parameter(PRECISION, tuple(usable)))
        self.first: tuple[Config, ...] = ()
        self.device = hardware.processor_name()
        exact = self._kernel.make_inputs(at_precision(shape, precisions(shape)[0]), seed=seed, device="cpu")
        self._truth = self._kernel.reference(exact)[0]

    def reject(self, point: Config) -> str | None:
        baseline = self._baselines[str(point[IMPLEMENTATION])]
        return baseline.unsupported(at_precision(self._shape, str(point[PRECISION])))

    def measure(self, points: Sequence[Config]) -> Iterator[PointResult]:
        for point in points:
            shape = at_precision(self._shape, str(point[PRECISION]))
            found = PointResult(point, kv_bytes(shape))
            try:
                with warnings.catch_warnings():  # a backend that refuses says so in warnings, and raises
                    warnings.simplefilter("ignore")
                    yield self._measure(found, self._baselines[str(point[IMPLEMENTATION])], shape)
            except Exception as failure:  # backends, compilers and libraries have no exception in common
                message = one_line(failure)
                yield replace(found, message=message)

    def _measure(self, found: PointResult, baseline: Baseline, shape: Shape) -> PointResult:
        from autotune.executor.comparing import hold  # loads torch

        inputs = self._kernel.make_inputs(shape, seed=self._seed, device="cpu")
        call, held = hold(lambda: baseline.prepare(shape, inputs), "cpu")
        out = call()
        error = largest_error(out, self._truth)
        if not math.isfinite(error):
            return replace(found, message="its result is not finite")
        extra = extra_bytes(call, "cpu", prepared=held)
        stopwatch = ClockStopwatch(call)
        deadline = time.monotonic() + SAMPLE_SECONDS
        samples = [stopwatch.sample()]
        while len(samples) < SAMPLES and time.monotonic() < deadline:
            samples.append(stopwatch.sample())
        return replace(found, timing=summarize(samples), extra_bytes=extra, error=error)

    def _why_not(self, baseline: Baseline) -> str | None:
        """Why a baseline runs in no precision here, or None."""
        if (reason := baseline.available()) is not None:
            return reason
        reasons = [baseline.unsupported(at_precision(self._shape, name)) for name in precisions(self._shape)]
        return None if None in reasons else reasons[0]

    def _supports(self, baseline: Baseline, precision: str) -> bool:
        return baseline.unsupported(at_precision(self._shape, precision)) is None
