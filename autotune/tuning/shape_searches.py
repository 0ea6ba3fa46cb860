"""The searches of one call: shape after shape, or side by side; each winner is stored, confirmed and served."""

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from autotune.device import Device
from autotune.dispatch import reload
from autotune.errors import AutotuneError, SearchError, TableError
from autotune.executor import Executor
from autotune.executor.select import Settings
from autotune.executor.several_gpus import GpuUse, SeveralGpus
from autotune.search import (
    Confirmation,
    Limits,
    Observer,
    Sampler,
    SearchResult,
    compile_all,
    confirm,
    finalists_for,
    search,
)
from autotune.search.proposals import AHEAD
from autotune.search.sweeps import ship_sweep
from autotune.shape import Shape
from autotune.table import Store, table_schema
from autotune.trial import PriorPick
from autotune.tuning.beginnings import Beginnings, find_beginnings, find_served, first_candidates
from autotune.tuning.side_by_side import SideBySide
from autotune.tuning.tuned import TunedShape, Tuning
from autotune.tuning.workloads import Answer, find_answers, take_turns, without_stand_in
from autotune.workload import Workload


@dataclass(kw_only=True)
class ShapeSearches:
    """Runs the searches of one call of ``tune``, and holds what they found by operation and shape."""

    limits: Limits
    settings: Settings
    sampler: Sampler
    seed: int
    store: Store
    observer: Observer
    race_served: bool
    target: Device | None
    ship_to: Path | None
    is_alone: bool
    interrupted: bool = False
    answers: list[Answer] = field(default_factory=list)
    served: dict[tuple[str, Shape], PriorPick] = field(default_factory=dict)
    found: dict[tuple[str, Shape], TunedShape] = field(default_factory=dict)
    gpus: tuple[GpuUse, ...] = ()

    def find(self, workloads: Sequence[Workload], executor: Executor, names: Sequence[str]) -> list[Answer]:
        """Find the search that answers each workload; refuse what no table could keep, and tables that are damaged."""
        for name in dict.fromkeys(each.name for each, _ in workloads):
            self.store.trials(name, executor.device)
        answers = find_answers(workloads, executor, names)
        if self.race_served:
            answers = list(map(without_stand_in, answers))
        for implementation in dict.fromkeys(each for answer in answers for each in answer.implementations):
            table_schema(implementation)
        return answers

    def run(self, executor: Executor, answers: list[Answer], started: float) -> None:
        """Search them all; ``started`` is when the budget of the first began to run."""
        self._begin(executor, answers)
        later = deque({each.key: each for each in answers if each.missing is None}.values())
        for each in take_turns(answers, executor, self.observer):
            if each.missing is not None:
                self._fail(each, each.missing)
            else:
                later.popleft()
                if later:
                    self._expect(executor, later[0])
                self._tune(executor, each, started if not self.found else time.monotonic())
            if self.interrupted:
                return

    def run_on_several(self, gpus: SeveralGpus, answers: list[Answer], started: float) -> None:
        """Search them all side by side; ``started`` is when the budget of the first on each GPU began to run."""
        copies: list[ShapeSearches] = []  # each with the observer of its search; what is found is shared by all

        def search_one(executor: Executor, answer: Answer, observer: Observer, is_first: bool) -> None:
            copies.append(copy := replace(self, observer=observer))
            copy._tune(executor, answer, started if is_first else time.monotonic())

        one = next(iter(gpus.executors.values()))
        self._begin(one, answers)
        try:
            SideBySide(gpus, search_one, self._expect, self.observer).run(take_turns(answers, one, self.observer))
        except KeyboardInterrupt:
            self.interrupted = any(each.interrupted for each in copies)
            if not self.interrupted:
                raise
        finally:
            self.gpus = gpus.uses()
            self.observer.on_gpus(self.gpus)

    def tuning(self, workloads: Sequence[Workload]) -> Tuning:
        """Return a result for each workload, in their order."""
        answers = self.answers or [Answer(each, shape, shape, ()) for each, shape in workloads]
        unreached = "interrupted before it was searched"
        results = []
        for each in answers:
            blank = TunedShape(operation=each.operation.name, asked=each.asked, shape=each.shape, failure=unreached)
            results.append(replace(self.found.get(each.key, blank), asked=each.asked))
        return Tuning(tuple(results), self.interrupted, self.gpus)

    def _begin(self, executor: Executor, answers: list[Answer]) -> None:
        self.answers = answers
        if executor.name == "gpu" or self.race_served:  # before anything is stored that would be served
            found = {each.key: each for each in answers if each.missing is None}
            self.served = {key: find_served(each, executor.device) for key, each in found.items()}

    def _expect(self, executor: Executor, answer: Answer) -> None:
        """Let what a later search has in flight first be compiled meanwhile; what is wrong there, that search tells."""
        if executor.name == "gpu":
            with contextlib.suppress(Exception):
                first = first_candidates(answer, executor.device, self._beginnings(executor, answer))
                executor.expect_problem(answer.operation, answer.shape, list(islice(first, AHEAD)))

    def _tune(self, executor: Executor, answer: Answer, started: float) -> None:
        """Search one shape; ``started`` is when its budget began to run."""
        try:
            result = self._search(executor, answer, started)
        except SearchError as error:
            self._fail(answer, error)
            return
        starting = {name: moment - started for name, moment in executor.reached.items() if moment >= started}
        stages = dict(sorted({**starting, **result.stages}.items(), key=lambda item: item[1]))
        result = replace(result, stages=stages)
        reload()  # the next shape begins with what this one found
        is_asked = any((each.operation, each.asked) == (answer.operation, result.shape) for each in self.answers)
        found = TunedShape(
            operation=answer.operation.name,
            asked=answer.asked,
            shape=result.shape,
            search=result,
            served=self.served.get(answer.key),
        )
        if result.winner is None:
            found = replace(found, failure="interrupted before its race")
        self.found[answer.key] = found
        self.interrupted = result.interrupted
        self.observer.on_result(result, is_asked=is_asked)
        if result.winner is not None:
            if not self.interrupted:
                self.found[answer.key] = replace(found, confirmation=self._confirm(executor, result))
            self.observer.on_saved(result, self.store.root / executor.device.slug / answer.operation.name)
        if self.ship_to is not None and not result.interrupted:
            try:
                ship_sweep(result, self.ship_to)
            except (SearchError, TableError) as error:
                self._fail(answer, error)

    def _search(self, executor: Executor, answer: Answer, started: float) -> SearchResult:
        beginnings = self._beginnings(executor, answer)
        return search(
            answer.operation,
            answer.shape,
            executor,
            self.store,
            limits=self.limits,
            implementations=answer.implementations,
            seed=self.seed,
            served=beginnings.served,
            neighbours=beginnings.neighbours,
            defaults=beginnings.defaults,
            heuristics=beginnings.heuristics,
            sampler=self.sampler,
            observer=self.observer,
            started=started,
        )

    def _beginnings(self, executor: Executor, answer: Answer) -> Beginnings:
        served, measures = self.served.get(answer.key), executor.name == "gpu"
        return find_beginnings(answer, executor.device, served, measures=measures)

    def _fail(self, answer: Answer, error: AutotuneError) -> None:
        """Note why a shape has no result, or why its sweep does not ship; raise for the only shape without a result."""
        found = self.found.get(answer.key)
        if found is None and self.is_alone:
            raise error
        blank = TunedShape(operation=answer.operation.name, asked=answer.asked, shape=answer.shape)
        self.found[answer.key] = replace(found or blank, failure=str(error))
        self.observer.on_failure(answer.asked, error)

    def _confirm(self, executor: Executor, result: SearchResult) -> Confirmation | None:
        """Without a GPU, confirm on this machine what can be; and compile for another target if one is named."""
        winner, confirmation = result.winner, None
        assert winner is not None
        try:
            if executor.name == "replay":
                self.observer.on_confirming(result)
                problem = (result.operation, result.shape, winner.device)
                confirmation = confirm(*problem, result.finalists, winner.candidate, self.settings)
                self.observer.on_confirmed(result, confirmation)
            if self.target is not None:
                wanted = finalists_for(result, self.target)
                outcomes = compile_all(result.operation, result.shape, self.target, wanted, self.settings)
                self.observer.on_compiled(result, self.target, outcomes)
        except KeyboardInterrupt:
            self.interrupted = True
            self.observer.on_interrupted(result)
        return confirmation
