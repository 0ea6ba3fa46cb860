"""Points of a goldilocks study on a GPU: kernels of ours and baselines, those of one precision in one race."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autotune.correctness import largest_error
from autotune.device import Device
from autotune.executor import BaselineResult, Executor
from autotune.implementation import Implementation
from autotune.lab.bench.comparison import OURS
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
from autotune.operation import Definition, Operation
from autotune.registry import implementations_of, load_baselines, load_definition
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.space import Config, Parameter
from autotune.trial import Candidate, Outcome, Status

RACE_SECONDS: Final = 3.0
SAMPLED_KV_HEADS: Final = 2  # whose rounding is looked at, of one sequence: the largest error hardly grows with more


class GpuBench(PointBench):
    """Measures points over an executor: configs of our first implementation, and baselines.

    Every config is compiled, checked and screened as in a search, in a process that may die of it; those that pass and
    the baselines are then raced, with the space's default where none did. The error is the sum of two: the
    implementation's against fp64 over the rounded inputs, and, by a sample on the CPU, what the rounding changes.
    """

    batch = 8

    def __init__(
        self, executor: Executor, operation: Operation[Any], shape: Shape, names: Sequence[str], *, seed: int = 0
    ) -> None:
        check_shape(shape)
        self._executor, self._operation, self._shape = executor, operation, shape
        self._ours = _first_that_supports(operation, shape, executor.device)
        self.device = executor.device.name
        known = [baseline for baseline in load_baselines(operation.name) if baseline.name in names]
        self.absent = tuple((each.name, why) for each in known if (why := each.available()) is not None)
        self._baselines = {each.name: each for each in known if each.available() is None}
        self._own = _own_parameters(self._ours, executor.device)
        usable = [name for name in precisions(shape) if self._is_computed(at_precision(shape, name))]
        self.parameters = (
            Parameter(IMPLEMENTATION, (OURS, *self._baselines)),
            Parameter(PRECISION, tuple(usable)),
            *self._own,
        )
        definition = load_definition(operation.name)
        self._rounding = {name: rounding_error(definition, shape, name, seed=seed) for name in usable}
        self.first = tuple(self._begin(usable))

    def reject(self, point: Config) -> str | None:
        shape = at_precision(self._shape, str(point[PRECISION]))
        name = str(point[IMPLEMENTATION])
        if name != OURS:
            return self._baselines[name].unsupported(shape)
        config = self._candidate(point).config
        return self._why_not_ours(shape) or self._ours.space.reject(config, shape, self._executor.device)

    def measure(self, points: Sequence[Config]) -> Iterator[PointResult]:
        for precision in dict.fromkeys(str(point[PRECISION]) for point in points):
            yield from self._measure(precision, [point for point in points if point[PRECISION] == precision])

    def _measure(self, precision: str, points: Sequence[Config]) -> Iterator[PointResult]:
        shape = at_precision(self._shape, precision)
        self._executor.open(self._operation, shape)
        ours = {self._candidate(point): point for point in points if point[IMPLEMENTATION] == OURS}
        others = {str(point[IMPLEMENTATION]): point for point in points if point[IMPLEMENTATION] != OURS}
        screened = self._screen(ours)
        passed = [candidate for candidate, outcome in screened.items() if outcome.status in (Status.OK, Status.SLOW)]
        entrants = passed or [Candidate(self._ours.name, self._ours.space.default(shape, self._executor.device))]
        race = self._executor.race(entrants, seconds=RACE_SECONDS, baselines=list(others))
        raced = dict(zip(entrants, race.outcomes, strict=True))
        extra = dict(zip(entrants, race.extra_bytes or (None,) * len(entrants), strict=True))
        results = {result.name: result for result in race.baselines}
        stored = kv_bytes(shape)
        for candidate, point in ours.items():
            outcome = raced[candidate] if candidate in passed else screened[candidate]
            timing = outcome.timing if outcome.status is Status.OK else None
            message = f"{outcome.status}: {outcome.message}"
            found = BaselineResult(OURS, timing, message, outcome.error, extra_bytes=extra.get(candidate))
            yield self._result(point, found, stored)
        for name, point in others.items():
            result = results.get(name, BaselineResult(name, message="no config of ours ran, which a race needs"))
            yield self._result(point, result, stored)

    def _screen(self, candidates: Iterable[Candidate]) -> dict[Candidate, Outcome]:
        """Compile, check and screen the candidates; return their outcomes in the same order."""
        waiting, found = list(candidates), dict[Candidate, Outcome]()
        order, flying = list(waiting), 0
        while waiting or flying:
            while waiting and flying < self._executor.capacity:
                self._executor.submit(waiting.pop(0))
                flying += 1
            outcome = self._executor.collect()
            if outcome is not None:
                found[outcome.candidate] = outcome
                flying -= 1
        return {candidate: found[candidate] for candidate in order}

    def _result(self, point: Config, result: BaselineResult, stored: int) -> PointResult:
        if result.timing is None or result.error is None:
            return PointResult(point, stored, message=result.message)
        error = result.error + self._rounding[str(point[PRECISION])]
        return PointResult(point, stored, result.timing, result.extra_bytes, error)

    def _begin(self, usable: Sequence[str]) -> Iterator[Config]:
        """Yield the default of each precision, then the baselines, the usual ones first."""
        device, space = self._executor.device, self._ours.space
        for precision in usable:
            shape = at_precision(self._shape, precision)
            if self._why_not_ours(shape) is None:
                yield self._point(OURS, precision, space.default(shape, device))
        for baseline in sorted(self._baselines.values(), key=lambda each: not each.is_usual):
            for precision in usable:
                yield self._point(baseline.name, precision, {})

    def _point(self, name: str, precision: str, values: Mapping[str, Any]) -> Config:
        return Config({IMPLEMENTATION: name, PRECISION: precision, **{p.name: values.get(p.name) for p in self._own}})

    def _candidate(self, point: Config) -> Candidate:
        """Return the launch parameters of a point of ours, in their own order, those of other devices as None."""
        return Candidate(self._ours.name, Config({p.name: point.get(p.name) for p in self._ours.space.parameters}))

    def _why_not_ours(self, shape: Shape) -> str | None:
        return self._operation.unsupported(shape) or self._ours.supports(shape, self._executor.device)

    def _is_computed(self, shape: Shape) -> bool:
        return self._why_not_ours(shape) is None or any(
            each.unsupported(shape) is None for each in self._baselines.values()
        )


def rounding_error(definition: Definition, shape: Shape, precision: str, *, seed: int) -> float:
    """Return how far rounding the inputs to a precision moves the fp64 result: the largest difference over a few heads.

    One draw is rounded, to the most exact precision and to this one; of a paged cache the queries stay.
    """
    assert isinstance(shape, AttentionShape | PagedShape)
    kv_heads = min(shape.kv_heads, SAMPLED_KV_HEADS)
    sample = replace(shape, batch=1, kv_heads=kv_heads, heads=kv_heads * shape.group)
    if isinstance(sample, PagedShape):
        sample = replace(sample, mean_context=sample.max_context)
    references = [
        definition.reference(definition.make_inputs(at_precision(sample, name), seed=seed, device="cpu"))[0]
        for name in (precision, precisions(shape)[0])
    ]
    return largest_error(*references)


def _first_that_supports(operation: Operation[Any], shape: Shape, device: Device) -> Implementation[Any]:
    """Return the first implementation that computes a shape; where none does, the first, which says why."""
    known = implementations_of(operation.name)
    return next((each for each in known if each.supports(shape, device) is None), known[0])


def _own_parameters(implementation: Implementation[Any], device: Device) -> tuple[Parameter, ...]:
    """Return the space's parameters on this device, which apply where the implementation is ours."""
    return tuple(
        p if p.only is not None else replace(p, only=(IMPLEMENTATION, OURS))
        for p in implementation.space.parameters
        if p.exists_on(device)
    )
