"""In the worker: one problem on this GPU, and what is judged there: numbers and times."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any, Final

import torch
import triton

from autotune import platforms, registry
from autotune.correctness import Case, Verdict, check_config, make_case, make_cases
from autotune.errors import is_toolchain_refusal, one_line
from autotune.executor import BaselineResult
from autotune.executor.messages import Entrant
from autotune.operation import Operation
from autotune.roofline import product_dtype, why_implausible
from autotune.shape import Shape
from autotune.timing import Launch, Stopwatch, screen
from autotune.trial import Candidate, Conditions, Outcome, Policy, Status, Timing

COLD_FACTOR: Final = 2  # input sets together exceed the L2 this many times
MAX_SETS: Final = 64
GIVE_UP: Final = 1.5  # a candidate this much slower than the best so far cannot win a race

Announce = Callable[[Entrant], None]


class UnopenedError(RuntimeError):
    """Inputs or references could not be made: no candidate is to blame."""


class Harness:
    """An operation and a shape on one GPU: check cases, timing inputs, and the best time so far.

    All implementations share the inputs and the references; cases of other shapes than the definition's are made when
    their first candidate comes.

    Raises:
        UnopenedError: they do not fit the GPU, or cannot be made.
    """

    def __init__(
        self, operation: Operation[Any], shape: Shape, policy: Policy, *, index: int = 0, own_pid: int | None = None
    ) -> None:
        self.operation = operation
        self.shape = shape
        self.policy = policy
        self.index = index
        self.pool: Any = None  # memory that the graphs of a race share
        self.best_us = math.inf
        self.cost = operation.cost(shape)
        self._own_pid = own_pid
        self._products = product_dtype(operation, shape)
        self._cache_bytes = int(torch.cuda.get_device_properties(index).L2_cache_size)
        self._cases: dict[tuple[Shape, ...], list[Case]] = {}
        try:
            self._definition = registry.load_definition(operation.name)
            self._make_cases(tuple(self._definition.check_shapes(shape)))
            self.sets = self._make_sets()
            torch.cuda.synchronize()
        except Exception as error:
            raise UnopenedError(one_line(error)) from error

    def _make_sets(self) -> list[tuple[Any, tuple[torch.Tensor, ...]]]:
        """Make inputs and first outputs to rotate over: larger than the L2, so that every launch reads memory."""
        count = math.ceil(COLD_FACTOR * self._cache_bytes / self.cost.bytes) if self.policy.cache == "cold" else 1
        sets = []
        for seed in range(min(count, MAX_SETS)):
            inputs = self._definition.make_inputs(self.shape, seed=seed, device="cuda")
            sets.append((inputs, self._definition.empty_outputs(inputs)[:1]))
        return sets

    def _make_cases(self, shapes: tuple[Shape, ...]) -> list[Case]:
        self._cases[shapes] = make_cases(self._definition, shapes, device="cuda", products=self._products)
        return self._cases[shapes]

    def _find_cases(self, name: str, announce: Announce) -> list[Case]:
        """Return the check cases of an implementation; making them concerns no candidate."""
        check_shapes = registry.get_implementation(self.operation.name, name).check_shapes
        shapes = tuple((check_shapes or self._definition.check_shapes)(self.shape))
        if shapes not in self._cases:
            announce(None)
            try:
                self._make_cases(shapes)
            except Exception as error:
                raise UnopenedError(one_line(error)) from error
            announce(0)
        return self._cases[shapes]

    @cached_property
    def full_case(self) -> Case:
        """The shape itself, for finalists only: its reference costs more than a screening."""
        try:
            case = make_case(self._definition, self.shape, "normal", device="cuda", seed=1, products=self._products)
        except Exception as error:
            raise UnopenedError(one_line(error)) from error
        return case

    def launch(self, candidate: Candidate, inputs: Any, outputs: tuple[torch.Tensor, ...]) -> None:
        registry.load_kernel(self.operation.name, candidate.implementation).launch(candidate.config, inputs, outputs)

    def launches(self, candidate: Candidate) -> list[Launch]:
        """Return a launch for each set of inputs, of the first output alone: as most callers want it."""
        kernel = registry.load_kernel(self.operation.name, candidate.implementation)
        return [partial(kernel.launch, candidate.config, inputs, outputs) for inputs, outputs in self.sets]

    def screen(self, candidate: Candidate, *, early_stop: bool, announce: Announce) -> Outcome:
        """Check the first output of a candidate, then take a short time."""
        cases = self._find_cases(candidate.implementation, announce)
        started = time.monotonic()
        outcome = self._screen(candidate, cases, early_stop=early_stop)
        return replace(outcome, judge_seconds=time.monotonic() - started)

    def _screen(self, candidate: Candidate, cases: Sequence[Case], *, early_stop: bool) -> Outcome:
        kernel = registry.load_kernel(self.operation.name, candidate.implementation)
        outcome = judged(candidate, check_config(kernel, candidate.config, cases))
        if outcome.status is not Status.OK:
            return outcome
        give_up = GIVE_UP * self.best_us if early_stop else math.inf
        with Stopwatch(self.launches(candidate), self.policy) as stopwatch:
            watch = self.watch()
            timing, stopped = screen(stopwatch, give_up_us=give_up)
            conditions = watch.end()
        return self.judge_time(replace(outcome, status=Status.SLOW if stopped else Status.OK), timing, conditions)

    def watch(self) -> platforms.Watch:
        return platforms.Watch(self._own_pid, self.index)

    def judge_time(self, outcome: Outcome, timing: Timing, conditions: Conditions) -> Outcome:
        """Return the outcome with its time, or implausible."""
        if (reason := self._why_implausible(timing)) is not None:
            return replace(outcome, status=Status.IMPLAUSIBLE, message=reason)
        self.best_us = min(self.best_us, timing.median_us)
        return replace(outcome, timing=timing, conditions=conditions)

    def judge_baseline(self, result: BaselineResult, timing: Timing) -> BaselineResult:
        """Return the result with its time, or with the reason why its call does not compute what was checked."""
        if (reason := self._why_implausible(timing)) is not None:
            return replace(result, message=f"implausible time of {timing.median_us:.3g} us: {reason}")
        return replace(result, timing=timing)

    def _why_implausible(self, timing: Timing) -> str | None:
        device = platforms.current_device(self.index)
        cached = 0 if self.policy.cache == "cold" else self._cache_bytes
        return why_implausible(self.cost, timing.median_us, device, self._products, cached_bytes=cached)

    def classify(self, error: Exception) -> Status:
        """Return which status an exception of a launch is: by whether the context survived it, then by its type."""
        if not platforms.is_context_alive(self.index):
            return Status.ILLEGAL_ACCESS
        if isinstance(error, triton.runtime.errors.OutOfResources):
            return Status.OUT_OF_RESOURCES
        if isinstance(error, torch.cuda.OutOfMemoryError):
            return Status.OUT_OF_MEMORY
        return Status.COMPILE_ERROR if is_toolchain_refusal(error) else Status.LAUNCH_ERROR

    def refuse(self, candidate: Candidate, error: Exception) -> Outcome:
        return Outcome(candidate=candidate, status=self.classify(error), message=one_line(error))


def judged(candidate: Candidate, verdict: Verdict) -> Outcome:
    return Outcome(candidate=candidate, **asdict(verdict))
