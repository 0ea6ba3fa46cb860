"""A comparison on a GPU, in the worker's race, and of baselines alone on a processor, which runs no Triton kernel."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from autotune.correctness import check_baseline, make_case
from autotune.dispatch import Among, default_config, pick_for_device
from autotune.dtypes import ITEM_BYTES
from autotune.errors import AutotuneError, one_line
from autotune.executor import BaselineResult, Executor, Race
from autotune.lab.bench.comparison import DEFAULT, OURS, Comparison, make_entry
from autotune.lab.bench.entrants import make_comparison, measure, of_baseline
from autotune.lab.bench.machines import Call, CpuMachine, OnStep, open_all, time_in_turns
from autotune.operation import Baseline, Operation
from autotune.registry import get_implementation, load_baselines, load_definition
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.timing import ClockStopwatch
from autotune.trial import Candidate, Status, Timing
from autotune.varlen_shape import VarlenShape

MIN_ROUNDS: Final = 5
FEW_ROUNDS: Final = 3  # the least that have a median, where MIN_ROUNDS would take MANY times the seconds
MANY: Final = 4
MAX_ROUNDS: Final = 100
MANY_FLOPS: Final = 10**12  # of which reference and limit took 200 s (two busy cores, torch 2.13.0, 2026-11-22)
VERBS: Final = {"flex": "compiling and checking"}  # before its first call it compiles, which takes long
FP64_BYTES: Final = 8
FP64_OUTPUTS: Final = 5  # tensors as large as the output during a check: the reference, and what the error takes
# Least bytes of a score, and matrices, of baselines that keep scores in memory: torch's math computes in float32, and a
# mask lies beside its two matrices (2.7 were measured, torch 2.13); eager reads one and writes one.
SCORES: Final = {"sdpa math": (4, 3), "eager": (2, 2)}


def compare_on_gpu(
    executor: Executor,
    operation: Operation[Any],
    shape: Shape,
    names: Sequence[str],
    *,
    seconds: float,
    among: Among = "ours",
) -> Comparison:
    """Race what ``get_kernel`` serves, the default and the named baselines, for at most this many seconds of timing.

    ``among`` are the implementations that may be served; the default is what would be served of the same one untuned. A
    system that fails, ours or a baseline, is an entry with the reason; where the race itself cannot be run,
    AutotuneError is raised.
    """
    kernel = pick_for_device(shape, executor.device, operation.name, among=among)
    served = kernel.candidate
    implementation = get_implementation(operation.name, served.implementation)
    default = replace(served, config=default_config(implementation, shape, executor.device))
    executor.open(operation, shape)
    candidates = list(dict.fromkeys([served, default]))
    started_at = datetime.now(UTC)
    race = executor.race(candidates, seconds=seconds, baselines=list(names))
    return Comparison(
        operation.name,
        shape,
        executor.device.name,
        executor.toolchain,
        executor.policy,
        tuple(make_entry(operation, shape, result, candidate) for result, candidate in _results(race, names)),
        kernel.provenance.reason,
        executor.device,
        next((outcome.conditions for outcome in race.outcomes if outcome.status is Status.OK), None),
        started_at,
    )


def _results(race: Race, names: Sequence[str]) -> Iterator[tuple[BaselineResult, Candidate | None]]:
    """Yield ours with their candidates, the served one first, then the named baselines."""
    extra = race.extra_bytes or (None,) * len(race.outcomes)
    for name, each, extra_bytes in zip((OURS, DEFAULT), race.outcomes, extra, strict=False):
        message = "" if each.status is Status.OK else f"{each.status}: {each.message}"
        result = BaselineResult(name, each.timing, message, each.error, each.error_limit, extra_bytes)
        yield result, each.candidate
    yield from ((result, None) for result in race.baselines)
    for name in names:
        if all(result.name != name for result in race.baselines):
            yield BaselineResult(name, message="the race was lost before its turn"), None


def why_not_here(baseline: Baseline, shape: Shape) -> str | None:
    """Return why a baseline cannot run on this machine or for this shape, or None; no inputs are made.

    Example:
        >>> why_not_here(Cudnn("cudnn"), shape)  # without a GPU
        'cuDNN needs an NVIDIA GPU, and none is here'
    """
    return baseline.available() or baseline.unsupported(shape)


def why_too_large(operation: Operation[Any], shape: Shape, room: int) -> str | None:
    """Return why inputs, output and its reference do not fit into ``room`` bytes, or None if they may.

    Example:
        >>> why_too_large(OPERATION, replace(shape, batch=100_000, seq_q=65536, seq_kv=65536), 16 * 2**30)
        'inputs, output and its fp64 reference take about 2,400,000.0 GiB, 16.0 GiB may be asked for'
    """
    needed = operation.cost(shape).bytes
    if isinstance(shape, AttentionShape | PagedShape):
        needed += FP64_OUTPUTS * FP64_BYTES * shape.batch * shape.heads * shape.seq_q * shape.head_dim_v
    if isinstance(shape, VarlenShape):
        needed += FP64_OUTPUTS * FP64_BYTES * shape.batch * shape.heads * shape.mean_seq_q * shape.head_dim_v
    return _excess("inputs, output and its fp64 reference take", needed, room)


def why_scores_too_large(name: str, shape: Shape, room: int) -> str | None:
    """Return why the scores of a baseline do not fit into ``room`` bytes, or None if they may or it keeps none."""
    if name not in SCORES or not isinstance(shape, AttentionShape):
        return None
    least, matrices = SCORES[name]
    item = max(least, ITEM_BYTES[shape.dtype])
    return _excess("its scores take", matrices * item * shape.batch * shape.heads * shape.seq_q * shape.seq_kv, room)


def _excess(subject: str, needed: int, room: int) -> str | None:
    if needed <= room:
        return None
    return f"{subject} about {needed / 2**30:,.1f} GiB, {room / 2**30:,.1f} GiB may be asked for"


class PatientCpu(CpuMachine):
    """A processor that times calls for at most this many seconds, with fewer rounds where calls are slow."""

    def __init__(self, seconds: float, on_step: OnStep) -> None:
        super().__init__(on_step)
        self._seconds = seconds

    def time(self, calls: Mapping[str, Call], *, rounds: int | None = None) -> dict[str, Timing]:
        started = time.perf_counter()
        stopwatches = open_all(calls, ClockStopwatch)  # making a stopwatch runs its call once
        expected = time.perf_counter() - started
        patience = max(self._seconds, 1.0)
        min_rounds = FEW_ROUNDS if MIN_ROUNDS * expected > MANY * patience else MIN_ROUNDS
        least = (1 + min_rounds) * expected  # one warms up
        about = f", which take about {least:.0f} s" if least > patience else f" and {MAX_ROUNDS} at most"
        limits = f"at most {self._seconds:g} s, but {min_rounds} rounds at least{about}"
        self.on_step(f"timing {', '.join(calls)} for {limits}")
        return time_in_turns(stopwatches, seconds=self._seconds, min_rounds=min_rounds, max_rounds=MAX_ROUNDS)


def compare_on_cpu(
    operation: Operation[Any],
    shape: Shape,
    names: Sequence[str],
    *,
    seconds: float,
    room: int | None = None,
    on_step: OnStep = lambda step: None,
) -> Comparison:
    """Race the named baselines on the CPU, in torch's threads as they are set, for at most this many seconds.

    A baseline that cannot run here, or breaks while it is checked or timed, is an entry with the reason. Inputs are
    made only if one can run.

    Args:
        room: the bytes that may be asked for; what would not fit is refused before anything is made.
        on_step: called with a line of text before each step, since each may take long.

    Raises:
        AutotuneError: inputs or reference do not fit this machine's memory, or cannot be made.
    """
    asked = [baseline for baseline in load_baselines(operation.name) if baseline.name in names]
    refused = {baseline.name: _refusal(baseline, shape, room) for baseline in asked}
    able = [baseline for baseline in asked if not refused[baseline.name].message]
    entrants = []
    if able:
        if room is not None and (reason := why_too_large(operation, shape, room)) is not None:
            raise AutotuneError(reason)
        on_step(f"making inputs and their fp64 reference{_how_long(operation.cost(shape).flops)}")
        try:
            case = make_case(load_definition(operation.name), shape, "normal", device="cpu", seed=1)
        except (RuntimeError, MemoryError) as error:
            raise AutotuneError(f"inputs and reference cannot be made: {one_line(error)}") from error
        entrants = [of_baseline(each, shape, case.inputs, lambda out: check_baseline(out, case)) for each in able]
    machine = PatientCpu(seconds, on_step)
    found = measure(machine, entrants, lambda name: on_step(f"{VERBS.get(name, 'checking')} {name}"))
    return make_comparison(machine, operation.name, shape, replace(found, results={**refused, **found.results}))


def _refusal(baseline: Baseline, shape: Shape, room: int | None) -> BaselineResult:
    """Return a result without a time; its message is the reason why there will be none, or empty."""
    too_large = None if room is None else why_scores_too_large(baseline.name, shape, room)
    message = why_not_here(baseline, shape) or too_large or ""
    return BaselineResult(baseline.name, message=message, verified_on_hardware=baseline.verified_on_hardware)


def _how_long(flops: int) -> str:
    return f", {flops / 1e12:,.0f} TFLOP: minutes on a processor" if flops >= MANY_FLOPS else ""
