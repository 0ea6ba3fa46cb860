"""``tune`` and ``sweep``: one search for each shape over one executor, its winner stored, confirmed and served."""

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import reload
from autotune.errors import AutotuneError, SearchError, TableError, UnknownNameError, UsageError, require_text
from autotune.executor import Executor
from autotune.executor.head_start import HeadStart
from autotune.executor.select import Settings, open_executor, open_gpu, open_replay
from autotune.executor.settings import GpuNames
from autotune.executor.several_gpus import GpuUse, SeveralGpus
from autotune.search import (
    DEFAULT_SAMPLER,
    SAMPLERS,
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
from autotune.table import Store, home, table_schema
from autotune.trial import PriorPick
from autotune.tuning.beginnings import Beginnings, find_beginnings, find_served, first_candidates
from autotune.tuning.refusals import check_flags, check_kinds, check_numbers, read_names, why_unwritable
from autotune.tuning.side_by_side import SideBySide
from autotune.tuning.tuned import TunedShape, Tuning
from autotune.tuning.workloads import Answer, find_answers, take_turns, without_stand_in
from autotune.workload import Workload, read_workloads


def tune(
    shapes: Shape | Iterable[Shape | Workload | tuple[str, Shape]],
    *,
    operation: str | None = None,
    implementations: str | Sequence[str] = (),
    budget: float | None = 60.0,
    trials: int | None = 120,
    sampler: Sampler = DEFAULT_SAMPLER,
    seed: int = 0,
    device: str | None = None,
    gpus: GpuNames | None = None,
    settings: Settings | None = None,
    store: Store | None = None,
    observer: Observer | None = None,
    must_measure: bool = False,
    must_replay: bool = False,
    race_served: bool = False,
    target: str | None = None,
    ship_to: Path | None = None,
    begun: HeadStart | None = None,
) -> Tuning:
    """Search the fastest correct candidate for each shape, keep every trial, and store the winners.

    With a GPU every candidate is compiled, checked and timed on it. Without one a sweep that was recorded on ``device``
    answers the times, at the recorded shape nearest to each; the finalists are compiled for that device, and the
    winner's numbers are checked in Triton's interpreter. From then on ``get_kernel`` serves the winners. A second call
    continues where the first one stopped.

    Ctrl-C does not raise: the results until then are returned, and ``interrupted`` is set.

    With ``gpus`` shapes are searched side by side, one on each GPU; where fewer shapes than GPUs are left, the others
    help to screen them, and each race stays on one GPU. A GPU is dropped that fails, that another process uses in three
    measurements in a row, or that heat or a fault slows down in as many; the others continue its search.

    Args:
        shapes: one shape, or several; an operation may stand beside each: ``(operation, shape)``.
        operation: the operation's name, where several take such shapes; the first that supports a shape by default.
        implementations: names of those to tune; all of ours that support the shape by default.
        budget: seconds for each shape, the race included; None: no limit. Where there is no GPU, compiling the
            finalists and checking the winner come on top.
        trials: candidates of each shape, of all implementations, that are measured at most; None: no limit. A search
            that has converged ends earlier, an exhaustive one does not.
        sampler: ``gp``, ``tpe``, ``random`` or ``exhaustive``.
        seed: seed of each study, from 0 to 2**32 - 1.
        device: the name of the GPU; the one here by default, else the NVIDIA H200 that sweeps ship for.
        gpus: the GPUs here to search on, ``"all"`` or indices as torch counts them; the current one by default. They
            are of one kind, by model and power cap; ``device`` leaves out those of another name.
        settings: how a GPU is used.
        store: where trials are kept; ``$AUTOTUNE_HOME`` by default.
        observer: receives progress.
        must_measure: refuse to replay; ``device`` can then name the GPU here alone.
        must_replay: let recorded sweeps answer even where a GPU is; not with ``gpus`` or ``must_measure``.
        race_served: try and race in a replay, too, what the tables serve for each shape; on a GPU that always is. A
            replay then answers for recorded shapes alone: no other one stands for what was asked.
        target: also compile the finalists for this architecture or device, such as ``"gfx942"`` or ``"A100"``; nothing
            of it is stored.
        ship_to: also write each complete sweep as tables that ship, below this folder.
        begun: when the first budget began to run on a GPU, and processes of it that were started then with the same
            ``settings`` (``autotune.executor.head_start``); with the call, as in a replay, and none, by default.

    Raises:
        SearchError: the only shape has no valid and correct candidate, or its budget cannot hold a race. Of several,
            its result says so.
        MissingDependencyError: there is neither a GPU nor a recording, or nothing is recorded like the only shape; of
            several GPUs none is left.
        UsageError: an argument is wrong, or a shape, of several one of them, is not supported or cannot be measured;
            nothing was searched.
        TableError: a stored table is damaged, or a trial cannot be written.

    Example:
        >>> shape = AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
        >>> print(autotune.tune(shape, budget=10))
    """
    called = time.monotonic()
    check_kinds(settings=settings, store=store, observer=observer, ship_to=ship_to, begun=begun)
    check_flags(must_measure=must_measure, must_replay=must_replay, race_served=race_served)
    begun = begun or HeadStart()
    if sampler not in SAMPLERS:
        raise UnknownNameError(f"sampler={sampler!r} is unknown; allowed: {', '.join(SAMPLERS)}")
    check_numbers(budget, trials, seed)
    if must_replay and (must_measure or gpus is not None):
        beside = "must_measure=True" if must_measure else f"gpus={gpus!r}"
        raise UsageError(f"must_replay=True is not allowed with {beside}, which measures; name one of them")
    for name, given, example in (("device", device, NVIDIA_H200.name), ("target", target, NVIDIA_H200.arch)):
        if given is not None:
            require_text(name, given, example)
    target_device = None if target is None else platforms.target_device(target)  # refused before anything is searched
    workloads = read_workloads(shapes, operation)
    names = read_names(implementations)
    store = store or Store(home())
    if (problem := why_unwritable(store.root)) is not None:
        raise UsageError(f"store={str(store.root)!r} cannot be written: {problem}; name another folder")
    settings = settings or Settings()
    tuner = _Tuner(
        limits=Limits(trials, budget, converge=sampler != "exhaustive"),
        settings=settings,
        sampler=sampler,
        seed=seed,
        store=store,
        observer=observer or Observer(),
        race_served=race_served,
        target=target_device,
        ship_to=ship_to,
        is_alone=len(workloads) == 1,
    )
    try:
        if gpus is not None:
            with contextlib.closing(SeveralGpus(settings, gpus, device)) as several:
                first = next(iter(several.executors.values()))
                tuner.run_on_several(several, tuner.find(workloads, first, names), begun.started or called)
            return tuner.tuning(workloads)
        children = begun.children
        opened: Executor
        if must_replay:
            opened = open_replay(device, settings.policy)
        else:
            opened = open_gpu(settings, children) if must_measure else open_executor(device, settings, children)
        with contextlib.closing(opened) as executor:
            here = executor.device
            if must_measure and device is not None and not platforms.is_named(here, device):
                expected = f"expected {here.name!r} or None"
                raise UsageError(f"device={device!r} is not allowed with must_measure=True; {expected}")
            answers = tuner.find(workloads, executor, names)
            started = begun.started if executor.name == "gpu" else None  # a replay uses nothing of what was begun
            tuner.run(executor, answers, called if started is None else started)
    except KeyboardInterrupt:
        tuner.interrupted = True
        tuner.observer.on_interrupted(None)
    return tuner.tuning(workloads)


@dataclass(kw_only=True)
class _Tuner:
    """Runs the searches of one call, and holds what they found by operation and shape."""

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
        copies: list[_Tuner] = []  # each with the observer of its search; what is found is shared by all

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

    def _begin(self, executor: Executor, answers: list[Answer]) -> None:
        self.answers = answers
        if executor.name == "gpu" or self.race_served:  # before anything is stored that would be served
            found = {each.key: each for each in answers if each.missing is None}
            self.served = {key: find_served(each, executor.device) for key, each in found.items()}

    def tuning(self, workloads: Sequence[Workload]) -> Tuning:
        """Return a result for each workload, in their order."""
        answers = self.answers or [Answer(each, shape, shape, ()) for each, shape in workloads]
        unreached = "interrupted before it was searched"
        results = []
        for each in answers:
            blank = TunedShape(operation=each.operation.name, asked=each.asked, shape=each.shape, failure=unreached)
            results.append(replace(self.found.get(each.key, blank), asked=each.asked))
        return Tuning(tuple(results), self.interrupted, self.gpus)

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
