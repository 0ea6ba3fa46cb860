"""The process that owns a GPU: checks, screens and races configs as its parent asks, one JSON line each.

A kernel that corrupts its CUDA context takes this process with it and nothing else. Run by ``GpuExecutor``:
``python -m autotune.executor.worker``.
"""

import json
import math
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, BinaryIO, Final

import torch
import triton

from autotune import hardware
from autotune.correctness import Case, check_config, judge, make_case, make_cases
from autotune.executor import Baseline, Race
from autotune.executor.messages import (
    die_with_parent,
    open_problem,
    outcome_to_json,
    race_to_json,
    send,
    take_standard_output,
)
from autotune.operation import Kernel, Operation
from autotune.roofline import why_implausible
from autotune.shape import Shape
from autotune.space import Config
from autotune.timing import Launch, Stopwatch, race, screen
from autotune.trial import Outcome, Policy, Status, Timing

MESSAGE_LIMIT: Final = 500
COLD_FACTOR: Final = 2  # input sets together exceed the L2 this many times
MAX_SETS: Final = 64
GIVE_UP: Final = 1.5  # a config this much slower than the best so far cannot win a race
REPEATS: Final = 3  # bitwise equal runs that a finalist owes
STICKY: Final = ("illegal", "misaligned", "unspecified launch failure", "device-side assert", "invalid program counter")


class Problem:
    """One operation and shape on this GPU: its check cases, its timing inputs, and the best time so far."""

    def __init__(self, operation: Operation[Any], kernel: Kernel, shape: Shape, policy: Policy) -> None:
        self._kernel = kernel
        self._shape = shape
        self._policy = policy
        self._cost = operation.cost(shape)
        self._best_us = math.inf

    @cached_property
    def _cases(self) -> list[Case]:
        return make_cases(self._kernel, self._shape, device="cuda")

    @cached_property
    def _full_case(self) -> Case:
        """The shape itself, for finalists only: its reference costs more than a screening."""
        return make_case(self._kernel, self._shape, "normal", device="cuda", seed=1)

    @cached_property
    def _sets(self) -> list[tuple[Any, tuple[torch.Tensor, ...]]]:
        """Inputs and outputs to rotate over: together larger than the L2, so that every launch reads memory."""
        cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        count = math.ceil(COLD_FACTOR * cache_bytes / self._cost.bytes) if self._policy.cache == "cold" else 1
        sets = []
        for seed in range(min(count, MAX_SETS)):
            inputs = self._kernel.make_inputs(self._shape, seed=seed, device="cuda")
            sets.append((inputs, self._kernel.empty_output(inputs)))
        return sets

    def screen(self, config: Config, *, early_stop: bool) -> Outcome:
        """Check a config's numbers, then take a short time; what it cost leaves out what all configs share."""
        cases, _ = self._cases, self._sets
        started = time.monotonic()
        outcome = self._screen(config, cases, early_stop=early_stop)
        return replace(outcome, judge_seconds=time.monotonic() - started)

    def _screen(self, config: Config, cases: list[Case], *, early_stop: bool) -> Outcome:
        verdict = check_config(self._kernel, config, cases)
        outcome = Outcome(
            config=config,
            status=verdict.status,
            message=verdict.message,
            error=verdict.error,
            error_limit=verdict.error_limit,
        )
        if verdict.status is not Status.OK:
            return outcome
        give_up = GIVE_UP * self._best_us if early_stop else math.inf
        with Stopwatch(self._launches(config), self._policy) as stopwatch:
            timing, stopped = screen(stopwatch, give_up_us=give_up)
        return self._judge_time(replace(outcome, status=Status.SLOW if stopped else Status.OK), timing)

    def race(self, configs: list[Config], *, seconds: float, every_baseline: bool) -> Race:
        """Check finalists on the full shape, then measure them and the baselines interleaved."""
        deadline = time.monotonic() + seconds
        verdicts = {config: self._check_finalist(config) for config in configs}
        with ExitStack() as stack:
            entrants: dict[Config, Stopwatch] = {}
            for config in [config for config in configs if verdicts[config].status is Status.OK]:
                try:
                    entrants[config] = stack.enter_context(Stopwatch(self._launches(config), self._policy))
                except Exception as error:
                    verdicts[config] = _refuse(config, error)
            baselines, refused = self._open_baselines(stack, every=every_baseline)
            everyone = [*entrants.values(), *baselines.values()]
            left = deadline - time.monotonic()
            timings = race(everyone, contenders=len(entrants), seconds=left) if everyone else []
        for config, timing in zip(entrants, timings, strict=False):
            verdicts[config] = self._judge_time(verdicts[config], timing)
        timed = zip(baselines, timings[len(entrants) :], strict=True)
        measured = tuple(Baseline(name, timing) for name, timing in timed)
        return Race(tuple(verdicts[config] for config in configs), (*measured, *refused))

    def _judge_time(self, outcome: Outcome, timing: Timing) -> Outcome:
        reason = why_implausible(self._cost, timing.median_us, hardware.current_device())
        if reason is not None:
            return replace(outcome, status=Status.IMPLAUSIBLE, message=reason)
        self._best_us = min(self._best_us, timing.median_us)
        return replace(outcome, timing=timing, conditions=hardware.conditions())

    def _check_finalist(self, config: Config) -> Outcome:
        case = self._full_case
        runs = []
        try:
            for _ in range(REPEATS):
                outputs = self._kernel.empty_output(case.inputs)
                self._kernel.launch(config, case.inputs, outputs)
                runs.append(outputs)
            verdict = judge(runs[0], case)
        except Exception as error:
            return _refuse(config, error)
        outcome = Outcome(
            config=config,
            status=verdict.status,
            message=verdict.message,
            error=verdict.error,
            error_limit=verdict.error_limit,
        )
        equal = all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))
        if verdict.status is Status.OK and not equal:
            return replace(outcome, status=Status.NONDETERMINISTIC, message=f"{REPEATS} runs are not bitwise equal")
        return outcome

    def _open_baselines(self, stack: ExitStack, *, every: bool) -> tuple[dict[str, Stopwatch], list[Baseline]]:
        """Baselines ready to be timed (the fastest by a short screening unless every), and those that refuse."""
        calls = [self._kernel.baselines(inputs) for inputs, _ in self._sets]
        found: dict[str, Stopwatch] = {}
        screened: dict[str, float] = {}
        refused: list[Baseline] = []
        for name in calls[0]:
            try:
                found[name] = stack.enter_context(Stopwatch([by_name[name] for by_name in calls], self._policy))
                screened[name] = screen(found[name], give_up_us=GIVE_UP * self._best_us, samples=3)[0].median_us
            except RuntimeError as error:
                found.pop(name, None)
                refused.append(Baseline(name, message=_one_line(error)))
        if found and not every:
            fastest = min(screened, key=lambda name: screened[name])
            found = {fastest: found[fastest]}
        return found, refused

    def _launches(self, config: Config) -> list[Launch]:
        def bind(inputs: Any, outputs: tuple[torch.Tensor, ...]) -> Launch:
            return lambda: self._kernel.launch(config, inputs, outputs)

        return [bind(inputs, outputs) for inputs, outputs in self._sets]


def classify(error: Exception) -> Status:
    """Which status an exception of a launch is, by its type and CUDA's words."""
    text = str(error).lower()
    if isinstance(error, triton.runtime.errors.OutOfResources):
        return Status.OUT_OF_RESOURCES
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return Status.OUT_OF_MEMORY
    if isinstance(error, triton.CompilationError) or "passmanager" in text:
        return Status.COMPILE_ERROR
    if any(word in text for word in STICKY):
        return Status.ILLEGAL_ACCESS
    return Status.LAUNCH_ERROR


def _refuse(config: Config, error: Exception) -> Outcome:
    """An exception as a verdict on the config, unless it took the context, and with it the whole race."""
    status = classify(error)
    if status is Status.ILLEGAL_ACCESS:
        raise error
    return Outcome(config=config, status=status, message=_one_line(error))


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:MESSAGE_LIMIT]


def answer(problem: Problem | None, request: dict[str, Any], messages: BinaryIO) -> None:
    """Do what a request asks and reply; an exception is a verdict, and one that broke the context ends the process."""
    assert problem is not None
    configs = [Config(config) for config in request["configs"]]
    try:
        if request["do"] == "screen":
            outcome = problem.screen(configs[0], early_stop=request["early_stop"])
            send(messages, {"outcome": outcome_to_json(outcome)})
        else:
            found = problem.race(configs, seconds=request["seconds"], every_baseline=request["every_baseline"])
            send(messages, {"race": race_to_json(found)})
    except Exception as error:
        status = classify(error)
        outcome = Outcome(config=configs[0], status=status, message=_one_line(error))
        send(messages, {"outcome": outcome_to_json(outcome)})
        if status is Status.ILLEGAL_ACCESS:
            os._exit(1)


def main() -> None:
    """Entry of the child: says who it is, then answers until its input ends."""
    die_with_parent()
    policy = Policy(**json.loads(sys.argv[1]))
    messages = take_standard_output()
    torch.zeros(1, device="cuda")
    device, tools = hardware.current_device(), hardware.toolchain()
    send(messages, {"device": asdict(device), "toolchain": asdict(tools)})
    problem: Problem | None = None
    with torch.no_grad():
        for line in sys.stdin.buffer:
            request = json.loads(line)
            if request["do"] == "open":
                problem = None  # frees the last problem's inputs before the next are made
                torch.cuda.empty_cache()
                problem = Problem(*open_problem(request["problem"]), policy)
            else:
                answer(problem, request, messages)


if __name__ == "__main__":
    main()
