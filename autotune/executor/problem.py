"""In the worker: one operation and shape on this GPU, and what is judged there: numbers, screening times, races."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import torch
import triton

from autotune import hardware
from autotune.allocations import extra_bytes
from autotune.correctness import Case, Verdict, check_config, judge, make_case, make_cases
from autotune.errors import one_line
from autotune.executor import BaselineResult, Baselines, Race, is_comparison
from autotune.executor.comparing import choose_baselines, open_baseline
from autotune.executor.messages import Turn
from autotune.operation import Kernel, Operation
from autotune.roofline import product_dtype, why_implausible
from autotune.shape import Shape
from autotune.space import Config
from autotune.timing import Launch, Stopwatch, race, screen
from autotune.trial import Conditions, Outcome, Policy, Status, Timing

COLD_FACTOR: Final = 2  # input sets together exceed the L2 this many times
MAX_SETS: Final = 64
GIVE_UP: Final = 1.5  # a config this much slower than the best so far cannot win a race
REPEATS: Final = 3  # bitwise equal runs that a finalist owes

Announce = Callable[[Turn], None]


class UnopenedError(RuntimeError):
    """Inputs or references could not be made: no config is to blame."""


class Problem:
    """One operation and shape on this GPU: its check cases, its timing inputs, and the best time so far.

    Raises:
        UnopenedError: they do not fit the GPU, or cannot be made.
    """

    def __init__(
        self, operation: Operation[Any], kernel: Kernel, shape: Shape, policy: Policy, own_pid: int | None
    ) -> None:
        self._kernel = kernel
        self._shape = shape
        self._policy = policy
        self._own_pid = own_pid
        self._cost = operation.cost(shape)
        self._best_us = math.inf
        self._pool: Any = None
        try:
            self._cases = make_cases(kernel, shape, device="cuda")
            self._sets = self._make_sets()
            torch.cuda.synchronize()
        except Exception as error:
            raise UnopenedError(one_line(error)) from error

    def _make_sets(self) -> list[tuple[Any, tuple[torch.Tensor, ...]]]:
        """Inputs and outputs to rotate over: together larger than the L2, so that every launch reads memory."""
        cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        count = math.ceil(COLD_FACTOR * cache_bytes / self._cost.bytes) if self._policy.cache == "cold" else 1
        sets = []
        for seed in range(min(count, MAX_SETS)):
            inputs = self._kernel.make_inputs(self._shape, seed=seed, device="cuda")
            sets.append((inputs, self._kernel.empty_output(inputs)))
        return sets

    @cached_property
    def _full_case(self) -> Case:
        """The shape itself, for finalists only: its reference costs more than a screening."""
        try:
            return make_case(self._kernel, self._shape, "normal", device="cuda", seed=1)
        except Exception as error:
            raise UnopenedError(one_line(error)) from error

    def screen(self, config: Config, *, early_stop: bool) -> Outcome:
        """Check a config's numbers, then take a short time."""
        started = time.monotonic()
        outcome = self._screen(config, early_stop=early_stop)
        return replace(outcome, judge_seconds=time.monotonic() - started)

    def _screen(self, config: Config, *, early_stop: bool) -> Outcome:
        outcome = _judged(config, check_config(self._kernel, config, self._cases))
        if outcome.status is not Status.OK:
            return outcome
        give_up = GIVE_UP * self._best_us if early_stop else math.inf
        with Stopwatch(self._launches(config), self._policy) as stopwatch:
            watch = hardware.Watch(self._own_pid)
            timing, stopped = screen(stopwatch, give_up_us=give_up)
            conditions = watch.end()
        return self._judge_time(replace(outcome, status=Status.SLOW if stopped else Status.OK), timing, conditions)

    def race(
        self,
        configs: list[Config],
        *,
        seconds: float,
        baselines: Baselines,
        announce: Announce,
        without: Sequence[str] = (),
    ) -> Race:
        """Check finalists on the full shape, then measure those that pass and the baselines interleaved.

        Baselines whose names are in ``without`` are left out. The seconds begin with the call; in a comparison when all
        are ready, since there compilers and planners may take any time.

        Raises:
            UnopenedError: the reference of the full shape cannot be made.
        """
        deadline = time.monotonic() + seconds
        # Graphs are replayed one after another, and nobody reads them. Of this race alone: torch takes no pool again
        # whose last graph is gone.
        self._pool = torch.cuda.graph_pool_handle()
        announce(None)
        case = self._full_case
        with ExitStack() as stack:
            verdicts, entrants, memory = self._admit_all(
                stack, configs, case, announce, with_memory=is_comparison(baselines)
            )
            if not entrants:
                return Race(tuple(verdicts))
            opened, results = self._open_baselines(stack, baselines, without, case, announce)
            if is_comparison(baselines):
                deadline = time.monotonic() + seconds
            announce(None)
            turns: list[Turn] = [*entrants, *opened]
            watch = hardware.Watch(self._own_pid)
            timings = race(
                [*entrants.values(), *opened.values()],
                contenders=len(entrants),
                seconds=deadline - time.monotonic(),
                on_turn=lambda index: announce(turns[index]),
            )
            announce(None)
            conditions = watch.end()
        self._judge_times(verdicts, results, dict(zip(turns, timings, strict=True)), conditions)
        return Race(tuple(verdicts), tuple(results.values()), memory)

    def _admit_all(
        self, stack: ExitStack, configs: Sequence[Config], case: Case, announce: Announce, *, with_memory: bool
    ) -> tuple[list[Outcome], dict[int, Stopwatch], tuple[int | None, ...]]:
        """Verdicts on all, stopwatches of those that pass by their places, and of each, if asked for, its memory."""
        verdicts: list[Outcome] = []
        entrants: dict[int, Stopwatch] = {}
        memory: list[int | None] = []
        for place, config in enumerate(configs):
            announce(place)
            verdict, stopwatch = self._admit(config, case, stack)
            verdicts.append(verdict)
            if stopwatch is not None:
                entrants[place] = stopwatch
            if with_memory:
                memory.append(None if stopwatch is None else self._measure_extra_bytes(config, case))
        return verdicts, entrants, tuple(memory)

    def _judge_times(
        self,
        verdicts: list[Outcome],
        results: dict[str, BaselineResult],
        timings: Mapping[Turn, Timing],
        conditions: Conditions,
    ) -> None:
        """Put the time of each, or why that cannot be one, into the verdicts and results."""
        for turn, timing in timings.items():
            if isinstance(turn, int):
                verdicts[turn] = self._judge_time(verdicts[turn], timing, conditions)
            elif turn is not None:
                results[turn] = self._judge_baseline(results[turn], timing)

    def _measure_extra_bytes(self, config: Config, case: Case) -> int | None:
        """None where memory does not suffice beside everything that the race holds: no verdict on the config."""
        try:
            outputs = self._kernel.empty_output(case.inputs)
            places = [output.data_ptr() for output in outputs]
            self._kernel.launch(config, case.inputs, outputs)
            if [output.data_ptr() for output in outputs] != places:  # it hands out memory of its own (FlexAttention)
                outputs = tuple(output.new_empty(0) for output in outputs)
            return extra_bytes(lambda: self._kernel.launch(config, case.inputs, outputs), "cuda")
        except torch.cuda.OutOfMemoryError:
            return None

    def _judge_time(self, outcome: Outcome, timing: Timing, conditions: Conditions) -> Outcome:
        reason = self._why_implausible(timing)
        if reason is not None:
            return replace(outcome, status=Status.IMPLAUSIBLE, message=reason)
        self._best_us = min(self._best_us, timing.median_us)
        return replace(outcome, timing=timing, conditions=conditions)

    def _judge_baseline(self, result: BaselineResult, timing: Timing) -> BaselineResult:
        """The result with its time, or with why that cannot be one: its call does not compute what was checked."""
        reason = self._why_implausible(timing)
        if reason is not None:
            return replace(result, message=f"implausible time of {timing.median_us:.3g} us: {reason}")
        return replace(result, timing=timing)

    def _why_implausible(self, timing: Timing) -> str | None:
        dtype = product_dtype(self._shape)
        return why_implausible(self._cost, timing.median_us, hardware.current_device(), dtype)

    def _admit(self, config: Config, case: Case, stack: ExitStack) -> tuple[Outcome, Stopwatch | None]:
        """Check a finalist; one that passes comes with its stopwatch, ready to be read."""
        try:
            outcome = self._check_finalist(config, case)
            if outcome.status is not Status.OK:
                return outcome, None
            stopwatch = stack.enter_context(Stopwatch(self._launches(config), self._policy, self._pool))
            stopwatch.warm_up()
        except Exception as error:
            if classify(error) is Status.ILLEGAL_ACCESS:
                raise  # it took the context, and with it the whole race
            return refusal(config, error), None
        return outcome, stopwatch

    def _check_finalist(self, config: Config, case: Case) -> Outcome:
        runs = []
        for _ in range(REPEATS):
            outputs = self._kernel.empty_output(case.inputs)
            self._kernel.launch(config, case.inputs, outputs)
            runs.append(outputs)
        outcome = _judged(config, judge(runs[0], case))
        equal = all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))
        if outcome.status is Status.OK and not equal:
            return replace(outcome, status=Status.NONDETERMINISTIC, message=f"{REPEATS} runs are not bitwise equal")
        return outcome

    def _open_baselines(
        self, stack: ExitStack, wanted: Baselines, without: Sequence[str], case: Case, announce: Announce
    ) -> tuple[dict[str, Stopwatch], dict[str, BaselineResult]]:
        """Stopwatches of the baselines that can be timed (of ``fastest`` the one, by a short screening), and all that
        is known of each that was asked for."""
        opened: dict[str, Stopwatch] = {}
        screened: dict[str, float] = {}
        results: dict[str, BaselineResult] = {}
        for baseline in choose_baselines(self._kernel.baselines(), wanted):
            name = baseline.name
            if name in without:
                continue
            announce(name)
            try:
                inputs = [inputs for inputs, _ in self._sets]
                results[name], stopwatch = open_baseline(
                    baseline,
                    self._shape,
                    inputs,
                    case,
                    self._policy,
                    self._pool,
                    stack,
                    with_memory=is_comparison(wanted),
                )
                if stopwatch is not None and wanted == "fastest":
                    timing, _ = screen(stopwatch, give_up_us=GIVE_UP * self._best_us, samples=3)
                    results[name] = self._judge_baseline(results[name], timing)
                    screened[name] = timing.median_us
                if stopwatch is not None and not results[name].message:
                    opened[name] = stopwatch
            except Exception as error:
                if classify(error) is Status.ILLEGAL_ACCESS:
                    raise
                results[name] = BaselineResult(name, message=one_line(error))
        if opened and wanted == "fastest":
            fastest = min(opened, key=lambda name: screened[name])
            results = {name: result for name, result in results.items() if name == fastest or name not in opened}
            opened = {fastest: opened[fastest]}
        return opened, results

    def _launches(self, config: Config) -> list[Launch]:
        def bind(inputs: Any, outputs: tuple[torch.Tensor, ...]) -> Launch:
            return lambda: self._kernel.launch(config, inputs, outputs)

        return [bind(inputs, outputs) for inputs, outputs in self._sets]


def classify(error: Exception) -> Status:
    """Which status an exception of a launch is: by whether the context survived it, then by its type."""
    if not hardware.is_context_alive():
        return Status.ILLEGAL_ACCESS
    if isinstance(error, triton.runtime.errors.OutOfResources):
        return Status.OUT_OF_RESOURCES
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return Status.OUT_OF_MEMORY
    if isinstance(error, triton.TritonError) or "passmanager" in str(error).lower():
        return Status.COMPILE_ERROR
    return Status.LAUNCH_ERROR


def refusal(config: Config, error: Exception) -> Outcome:
    """An exception as a verdict on the config."""
    return Outcome(config=config, status=classify(error), message=one_line(error))


def _judged(config: Config, verdict: Verdict) -> Outcome:
    return Outcome(
        config=config,
        status=verdict.status,
        message=verdict.message,
        error=verdict.error,
        error_limit=verdict.error_limit,
    )
