"""In the worker: finalists and baselines are checked and made ready for a race, then measured interleaved."""

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, TypeVar

import torch

from autotune import registry
from autotune.allocations import extra_bytes, measure_held
from autotune.correctness import check_baseline, judge
from autotune.errors import one_line
from autotune.executor import BaselineResult, Baselines, Race, is_comparison
from autotune.executor.harness import GIVE_UP, Announce, Harness, judged
from autotune.executor.messages import Entrant
from autotune.kernels.baselines.baseline import OverCopies
from autotune.operation import Baseline
from autotune.timing import Stopwatch, race, screen
from autotune.trial import Candidate, Outcome, Status

REPEATS: Final = 3  # bitwise equal runs that a finalist owes
CallT = TypeVar("CallT", bound=Callable[[], object])


def race_entrants(
    harness: Harness,
    candidates: Sequence[Candidate],
    *,
    seconds: float,
    baselines: Baselines,
    announce: Announce,
    without: Sequence[str] = (),
) -> Race:
    """Check finalists on the full shape, then measure those that pass and the baselines interleaved.

    Baselines whose names are in ``without`` are left out. The seconds begin with the call; in a comparison when all are
    ready, since there compilers and planners may take any time.
    """
    deadline = time.monotonic() + seconds
    # Graphs take turns and are not read, so they share memory; torch takes no pool again whose last graph is gone.
    harness.pool = torch.cuda.graph_pool_handle()
    announce(None)
    with ExitStack() as stack:
        admission = Admission(harness, stack, announce, with_memory=is_comparison(baselines))
        verdicts, entrants, memory = admission.admit_candidates(candidates)
        if not entrants:
            return Race(tuple(verdicts))
        opened, results = admission.admit_baselines(baselines, without)
        if is_comparison(baselines):
            deadline = time.monotonic() + seconds
        announce(None)
        order: list[Entrant] = [*entrants, *opened]
        watch = harness.watch()
        timings = race(
            [*entrants.values(), *opened.values()],
            contenders=len(entrants),
            seconds=deadline - time.monotonic(),
            on_turn=lambda place: announce(order[place]),
        )
        announce(None)
        conditions = watch.end()
    for entrant, timing in zip(order, timings, strict=True):
        if isinstance(entrant, int):
            verdicts[entrant] = harness.judge_time(verdicts[entrant], timing, conditions)
        elif entrant is not None:
            results[entrant] = harness.judge_baseline(results[entrant], timing)
    return Race(tuple(verdicts), tuple(results.values()), memory)


class Admission:
    """Admits candidates and baselines to one race on the full shape; their stopwatches last as long as ``stack``.

    ``announce`` is called with the entrant before each step. With ``with_memory`` the memory of each is measured.
    """

    def __init__(self, harness: Harness, stack: ExitStack, announce: Announce, *, with_memory: bool) -> None:
        self._harness = harness
        self._stack = stack
        self._announce = announce
        self._with_memory = with_memory
        self._case = harness.full_case

    def admit_candidates(
        self, candidates: Sequence[Candidate]
    ) -> tuple[list[Outcome], dict[int, Stopwatch], tuple[int | None, ...]]:
        """Return verdicts on all, stopwatches of those that pass by their places, and of each, if asked, its memory."""
        verdicts: list[Outcome] = []
        entrants: dict[int, Stopwatch] = {}
        memory: list[int | None] = []
        for place, candidate in enumerate(candidates):
            verdict, stopwatch = self._admit(candidate, place)
            verdicts.append(verdict)
            if stopwatch is not None:
                entrants[place] = stopwatch
            if self._with_memory:
                memory.append(None if stopwatch is None else self._measure_extra_bytes(candidate))
        return verdicts, entrants, tuple(memory)

    def _admit(self, candidate: Candidate, place: int) -> tuple[Outcome, Stopwatch | None]:
        """Check a finalist; one that passes comes with its stopwatch, ready to be read."""
        harness = self._harness
        try:
            for every_output in (True, False) if len(self._case.references) > 1 else (False,):
                self._announce(place)  # once for each binary that may have to be compiled
                outcome = self._check(candidate, every_output=every_output)
                if outcome.status is not Status.OK:
                    return outcome, None
            stopwatch = self._stack.enter_context(Stopwatch(harness.launches(candidate), harness.policy, harness.pool))
            stopwatch.warm_up()
        except OSError:
            raise  # the machine's, as is an unwritable cache
        except Exception as error:
            if harness.classify(error) is Status.ILLEGAL_ACCESS:
                raise  # it took the context, and with it the whole race
            return harness.refuse(candidate, error), None
        return outcome, stopwatch

    def _check(self, candidate: Candidate, *, every_output: bool) -> Outcome:
        """Judge the numbers of a finalist on the full shape, and that its runs are bitwise equal where they must be."""
        implementation = registry.get_implementation(self._harness.operation.name, candidate.implementation)
        is_deterministic = implementation.is_deterministic(candidate.config)
        runs = []
        for _ in range(REPEATS if is_deterministic else 1):
            outputs = self._case.empty_outputs(every_output=every_output)
            self._harness.launch(candidate, self._case.inputs, outputs)
            runs.append(outputs)
        outcome = judged(candidate, judge(runs[0], self._case))
        equal = all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))
        if outcome.status is Status.OK and not equal:
            return replace(outcome, status=Status.NONDETERMINISTIC, message=f"{REPEATS} runs are not bitwise equal")
        return outcome

    def _measure_extra_bytes(self, candidate: Candidate) -> int | None:
        """Return None where memory does not suffice beside all that the race holds: no verdict on the candidate."""
        try:
            outputs = self._case.empty_outputs(every_output=False)
            places = [output.data_ptr() for output in outputs]
            self._harness.launch(candidate, self._case.inputs, outputs)
            if [output.data_ptr() for output in outputs] != places:  # it hands out memory of its own (FlexAttention)
                outputs = tuple(output.new_empty(0) for output in outputs)
            return extra_bytes(lambda: self._harness.launch(candidate, self._case.inputs, outputs), "cuda")
        except torch.cuda.OutOfMemoryError:
            return None

    def admit_baselines(
        self, wanted: Baselines, without: Sequence[str]
    ) -> tuple[dict[str, Stopwatch], dict[str, BaselineResult]]:
        """Return stopwatches of the baselines that can be timed (of ``fastest`` the one, by a short screening), and all
        that is known of each that was asked for."""
        opened: dict[str, Stopwatch] = {}
        screened: dict[str, float] = {}
        results: dict[str, BaselineResult] = {}
        for baseline in choose_baselines(registry.load_baselines(self._harness.operation.name), wanted):
            name = baseline.name
            if name in without:
                continue
            self._announce(name)
            try:
                results[name], stopwatch = self._open(baseline)
                if stopwatch is not None and wanted == "fastest":
                    timing, _ = screen(stopwatch, give_up_us=GIVE_UP * self._harness.best_us, samples=3)
                    results[name] = self._harness.judge_baseline(results[name], timing)
                    screened[name] = timing.median_us
                if stopwatch is not None and not results[name].message:
                    opened[name] = stopwatch
            except Exception as error:
                if self._harness.classify(error) is Status.ILLEGAL_ACCESS:
                    raise
                results[name] = BaselineResult(name, message=one_line(error))
        if opened and wanted == "fastest":
            fastest = min(opened, key=lambda name: screened[name])
            results = {name: result for name, result in results.items() if name == fastest or name not in opened}
            opened = {fastest: opened[fastest]}
        return opened, results

    def _open(self, baseline: Baseline) -> tuple[BaselineResult, Stopwatch | None]:
        """Return what is known of a baseline before it is timed, and its stopwatch, warmed up, or a message why not."""
        harness, case = self._harness, self._case
        result = BaselineResult(baseline.name, verified_on_hardware=baseline.verified_on_hardware)
        if (reason := baseline.available() or baseline.unsupported(harness.shape)) is not None:
            return replace(result, message=reason), None

        def prepare() -> Callable[[], torch.Tensor]:
            return baseline.prepare(harness.shape, case.inputs)

        call, held = hold(prepare, "cuda") if self._with_memory else (prepare(), 0)
        error, limit = check_baseline(call(), case)
        extra = extra_bytes(call, "cuda", prepared=held) if self._with_memory else None
        result = replace(result, error=error, error_limit=limit, extra_bytes=extra)
        del call
        launches = [baseline.prepare(harness.shape, inputs) for inputs, _ in harness.sets]
        stopwatch = self._stack.enter_context(Stopwatch(launches, harness.policy, harness.pool))
        stopwatch.warm_up()
        return result, stopwatch


def choose_baselines(known: Sequence[Baseline], wanted: Baselines) -> list[Baseline]:
    """Return those that take part in a race: of names those that are known, in their own order."""
    if wanted == "fastest":
        return [baseline for baseline in known if baseline.is_usual]
    if isinstance(wanted, str):
        return list(known) if wanted == "every" else []
    return [baseline for baseline in known if baseline.name in wanted]


def hold(prepare: Callable[[], CallT], kind: str) -> tuple[CallT, int]:
    """Return a baseline's call on a device of that kind, ``"cpu"`` or ``"cuda"`` (the current one), and the bytes that
    it holds beside its inputs; copies count as these, as far as they take no more than what they stand for."""

    def prepare_and_tidy() -> CallT:
        call = prepare()
        gc.collect()  # what compiling and planning left behind does not count
        return call

    gc.collect()  # nor must what others left be freed meanwhile
    call, held = measure_held(prepare_and_tidy, kind)
    return call, max(0, held.kept - (call.input_bytes if isinstance(call, OverCopies) else 0))
