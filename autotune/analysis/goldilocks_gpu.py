"""Points of a goldilocks study on a GPU: kernels of ours and baselines, those of one precision in one race."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autotune.analysis.goldilocks import (
    IMPLEMENTATION,
    PRECISION,
    PointResult,
    at_precision,
    check_shape,
    kv_bytes,
    precisions,
)
from autotune.comparison import OURS
from autotune.correctness import largest_error
from autotune.device import Device
from autotune.executor import BaselineResult, Executor
from autotune.operation import Kernel, Operation
from autotune.registry import load_kernel
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.space import Config, Parameter
from autotune.trial import Outcome, Status

RACE_SECONDS: Final = 3.0
SAMPLED_KV_HEADS: Final = 2  # whose rounding is looked at, of one sequence: the largest error hardly grows with more


class GpuBench:
    """Implements ``goldilocks.Bench`` over an executor: configs of the operation's space, and baselines of these names.

    Every config is compiled, checked and screened as in a search, in a process that may die of it; those that pass and
    the baselines are then raced, with the space's default where none did. The error is the sum of two: the
    implementation's against fp64 over the rounded inputs, and, by a sample on the CPU, what the rounding changes.

    Raises:
        UsageError: the shape is neither dense nor paged attention.
    """

    batch: Final = 8

    def __init__(
        self, executor: Executor, operation: Operation[Any], shape: Shape, names: Sequence[str], *, seed: int = 0
    ) -> None:
        check_shape(shape)
        kernel = load_kernel(operation.name)
        self._executor, self._operation, self._shape = executor, operation, shape
        self.device = executor.device.name
        known = [baseline for baseline in kernel.baselines() if baseline.name in names]
        self.absent = tuple((each.name, why) for each in known if (why := each.available()) is not None)
        self._baselines = {each.name: each for each in known if each.available() is None}
        self._own = _own_parameters(operation, executor.device)
        usable = [name for name in precisions(shape) if self._is_computed(at_precision(shape, name))]
        self.parameters = (
            Parameter(IMPLEMENTATION, (OURS, *self._baselines)),
            Parameter(PRECISION, tuple(usable)),
            *self._own,
        )
        self._rounding = {name: rounding_error(kernel, shape, name, seed=seed) for name in usable}
        self.first = tuple(self._begin(usable))

    def reject(self, point: Config) -> str | None:
        shape = at_precision(self._shape, str(point[PRECISION]))
        name = str(point[IMPLEMENTATION])
        if name != OURS:
            return self._baselines[name].unsupported(shape)
        space, config = self._operation.space, self._config(point)
        return self._operation.unsupported(shape) or space.reject(config, shape, self._executor.device)

    def measure(self, points: Sequence[Config]) -> Iterator[PointResult]:
        for precision in dict.fromkeys(str(point[PRECISION]) for point in points):
            yield from self._measure(precision, [point for point in points if point[PRECISION] == precision])

    def _measure(self, precision: str, points: Sequence[Config]) -> Iterator[PointResult]:
        shape = at_precision(self._shape, precision)
        self._executor.open(self._operation, shape)
        ours = {self._config(point): point for point in points if point[IMPLEMENTATION] == OURS}
        others = {str(point[IMPLEMENTATION]): point for point in points if point[IMPLEMENTATION] != OURS}
        screened = self._screen(ours)
        passed = [config for config, outcome in screened.items() if outcome.status in (Status.OK, Status.SLOW)]
        entrants = passed or [self._operation.space.default(shape, self._executor.device)]
        race = self._executor.race(entrants, seconds=RACE_SECONDS, baselines=list(others))
        raced = dict(zip(entrants, race.outcomes, strict=True))
        extra = dict(zip(entrants, race.extra_bytes or (None,) * len(entrants), strict=True))
        results = {result.name: result for result in race.baselines}
        stored = kv_bytes(shape)
        for config, point in ours.items():
            outcome = raced[config] if config in passed else screened[config]
            yield self._of_outcome(point, outcome, extra.get(config), stored)
        for name, point in others.items():
            result = results.get(name, BaselineResult(name, message="no config of ours ran, which a race needs"))
            yield self._of_baseline(point, result, stored)

    def _screen(self, configs: Iterable[Config]) -> dict[Config, Outcome]:
        """Compile, check and screen; the configs in their order with what became of each."""
        waiting, found = list(configs), dict[Config, Outcome]()
        order, flying = list(waiting), 0
        while waiting or flying:
            while waiting and flying < self._executor.capacity:
                self._executor.submit(waiting.pop(0))
                flying += 1
            outcome = self._executor.collect()
            if outcome is not None:
                found[outcome.config] = outcome
                flying -= 1
        return {config: found[config] for config in order}

    def _of_outcome(self, point: Config, outcome: Outcome, extra: int | None, stored: int) -> PointResult:
        if outcome.status is not Status.OK or outcome.error is None:
            return PointResult(point, stored, message=f"{outcome.status}: {outcome.message}")
        return PointResult(point, stored, outcome.timing, extra, outcome.error + self._rounding[str(point[PRECISION])])

    def _of_baseline(self, point: Config, result: BaselineResult, stored: int) -> PointResult:
        if result.timing is None or result.error is None:
            return PointResult(point, stored, message=result.message)
        error = result.error + self._rounding[str(point[PRECISION])]
        return PointResult(point, stored, result.timing, result.extra_bytes, error)

    def _begin(self, usable: Sequence[str]) -> Iterator[Config]:
        """The default of each precision, then the baselines, the usual ones first."""
        device, space = self._executor.device, self._operation.space
        for precision in usable:
            shape = at_precision(self._shape, precision)
            if self._operation.unsupported(shape) is None:
                yield self._point(OURS, precision, space.default(shape, device))
        for baseline in sorted(self._baselines.values(), key=lambda each: not each.is_usual):
            for precision in usable:
                yield self._point(baseline.name, precision, {})

    def _point(self, name: str, precision: str, values: Mapping[str, Any]) -> Config:
        return Config({IMPLEMENTATION: name, PRECISION: precision, **{p.name: values.get(p.name) for p in self._own}})

    def _config(self, point: Config) -> Config:
        """The launch parameters of a point of ours, in their own order, those of other backends as None."""
        return Config({p.name: point.get(p.name) for p in self._operation.space.parameters})

    def _is_computed(self, shape: Shape) -> bool:
        """Whether anything here computes this shape."""
        return self._operation.unsupported(shape) is None or any(
            each.unsupported(shape) is None for each in self._baselines.values()
        )


def rounding_error(kernel: Kernel, shape: Shape, precision: str, *, seed: int) -> float:
    """How far rounding its inputs to a precision moves the fp64 result: the largest difference over a few heads.

    One draw is rounded, to the most exact precision and to this one; of a paged cache the queries stay.
    """
    assert isinstance(shape, AttentionShape | PagedShape)
    kv_heads = min(shape.kv_heads, SAMPLED_KV_HEADS)
    sample = replace(shape, batch=1, kv_heads=kv_heads, heads=kv_heads * shape.group)
    if isinstance(sample, PagedShape):
        sample = replace(sample, mean_context=sample.max_context)
    references = [
        kernel.reference(kernel.make_inputs(at_precision(sample, name), seed=seed, device="cpu"))[0]
        for name in (precision, precisions(shape)[0])
    ]
    return largest_error(*references)


def _own_parameters(operation: Operation[Any], device: Device) -> tuple[Parameter, ...]:
    """The operation's parameters on this device, which apply where the implementation is ours."""
    return tuple(
        p if p.only is not None else replace(p, only=(IMPLEMENTATION, OURS))
        for p in operation.space.parameters
        if p.backend in (None, device.backend)
    )
