"""Runs the studies of ``autotune search`` and ``autotune sweep`` one after the other, and tells of each as it ends."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from autotune.cli import interrupts
from autotune.cli.output import make_console
from autotune.cli.progress import Progress
from autotune.cli.tables import name_of_place, require_place
from autotune.cli.turns import Problem, Turn, take_turns
from autotune.device import Device
from autotune.dispatch import get_kernel, neighbour_configs, reload
from autotune.errors import AutotuneError, SearchError, TableError, UsageError
from autotune.executor import Executor
from autotune.executor.compile_pool import limit_jobs
from autotune.executor.select import Settings, Site, find_site, open_executor, open_gpu
from autotune.operation import Operation
from autotune.report.confirmation import compiled_text, confirmation_data, confirmation_lines, why_uncompiled
from autotune.report.plan import plan_data, plan_lines
from autotune.report.summary import ending_line, interruption_line, result_data, result_lines
from autotune.search import Confirmation, Limits, Sampler, SearchResult, compile_all, confirm, search
from autotune.search.plan import make_plan
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store, home, warn_damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a command was asked to do. ``must_measure``: a replay is no answer; ``ship`` takes each finished result."""

    problems: list[Problem]
    limits: Limits
    settings: Settings
    sampler: Sampler
    seed: int = 0
    device: str | None = None
    target: str | None = None
    must_measure: bool = False
    ship: Callable[[SearchResult], None] | None = None
    out: Path | None = None
    as_json: bool = False

    @property
    def store(self) -> Store:
        return Store(self.out or home())


def preview(task: Task) -> None:
    """Print what ``run`` would do; opens no GPU and writes nothing."""
    require_place(task.out)
    store = Store(task.store.root, on_damaged=warn_damaged)
    console, data = make_console(task.as_json), []
    site = find_site(task.device, task.settings.policy)
    for operation, shape, missing, _ in take_turns(task.problems, site, console):
        here = site
        if missing is not None:
            console.print(f"not recorded: a search of this needs the GPU; planned as on an {site.device.name}")
            here = Site("gpu", site.device, site.toolchain, site.policy)
        plan = make_plan(
            operation,
            shape,
            here,
            store,
            limits=task.limits,
            sampler=task.sampler,
            jobs=limit_jobs(task.settings.jobs).count,
        )
        console.print(*plan_lines(plan), sep="\n", end="\n\n")
        data.append(plan_data(plan))
    if task.as_json:
        print(json.dumps(data, indent=2))


def run(task: Task) -> list[SearchResult]:
    """One study for each problem over one executor; prints each result as it comes.

    Raises:
        AutotuneError: a study found no winner, one that could not be shipped, or one that does not hold here.
        typer.Exit: a signal ended it; what was measured is kept.
    """
    interrupts.listen()
    console, started = make_console(task.as_json), time.monotonic()
    require_place(task.out)
    require_writable(task.store.root, name_of_place(task.out))
    studies = Studies(task, console)
    try:
        opened = open_gpu(task.settings) if task.must_measure else open_executor(task.device, task.settings)
        with contextlib.closing(opened) as executor:
            for name in dict.fromkeys(operation.name for operation, _ in task.problems):
                task.store.trials(name, executor.device)  # refuses what is damaged before anything is said or done
            for number, turn in enumerate(take_turns(task.problems, executor, console)):
                if turn.missing is not None:
                    studies.fail(turn.missing)
                    continue
                studies.run(executor, turn, time.monotonic() if number else started)
                if studies.interrupted:
                    break
    except KeyboardInterrupt:
        studies.interrupted = True
        console.print("interrupted: everything that was measured is kept, run the same command to continue")
    if task.as_json:
        print(json.dumps(studies.data, indent=2))
    if studies.interrupted:
        raise typer.Exit(interrupts.exit_code())
    if studies.failed:
        raise SearchError(f"{studies.failed} of {len(task.problems)} shapes failed: see the lines `failed`")
    if studies.refuted:
        raise AutotuneError("a winner does not hold on this machine: see the lines `compiled` and `checked`")
    return studies.results


@dataclass
class Studies:
    """What the studies of one command came to."""

    task: Task
    console: Console
    results: list[SearchResult] = field(default_factory=list)
    data: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0
    refuted: bool = False
    interrupted: bool = False

    def run(self, executor: Executor, turn: Turn, started: float) -> None:
        """One study, told of; ``started`` is when its budget began to run."""
        try:
            result = self._search(executor, turn.operation, turn.shape, started)
        except SearchError as error:
            self.fail(error)
            return
        self.results.append(result)
        reload()  # the next shape begins with what this one found
        self._tell(executor, result, is_asked=turn.is_asked)
        confirmation = None
        if result.winner is not None and not self.interrupted:
            confirmation = self._confirm(executor, result)
        if result.winner is not None:
            self._tell_saved(executor, result)
        data = result_data(result, is_asked=turn.is_asked)
        self.data.append({**data, "confirmation": confirmation_data(confirmation)})
        if not result.interrupted:
            self._ship(result)

    def fail(self, error: AutotuneError) -> None:
        """Say why a problem has no result and go on, unless it is the only one."""
        if len(self.task.problems) == 1:
            raise error
        self.console.print(f"failed    {error}\n")
        self.failed += 1

    def _search(self, executor: Executor, operation: Operation[Any], shape: Shape, started: float) -> SearchResult:
        task = self.task
        measures = executor.name == "gpu"  # a replay that began with the shipped winner would show nothing
        with Progress(self.console, task.limits, started) as progress:
            return search(
                operation,
                shape,
                executor,
                task.store,
                limits=task.limits,
                seed=task.seed,
                served=_served(operation, shape, executor.device) if measures else None,
                neighbours=neighbour_configs(operation, shape, executor.device, shipped=measures),
                sampler=task.sampler,
                observer=progress,
                started=started,
            )

    def _tell(self, executor: Executor, result: SearchResult, *, is_asked: bool) -> None:
        """Print how a study ended; ``is_asked`` as in ``Turn``."""
        self.console.print(ending_line(result))
        if result.contended and executor.name == "gpu":  # a replay's are those of its recording
            measurements = "1 measurement" if result.contended == 1 else f"{result.contended} measurements"
            self.console.print(
                f"contended another process was using the GPU during {measurements}; "
                "rows are marked and a later uncontended race replaces them"
            )
        if result.interrupted:
            self.interrupted = True
            self.console.print(interruption_line(result))
        if result.winner is not None:
            self.console.print(*result_lines(result, is_asked=is_asked), sep="\n")

    def _confirm(self, executor: Executor, result: SearchResult) -> Confirmation | None:
        """Without a GPU, confirm on this machine what can be; and compile for another target if one is named."""
        confirmation = None
        try:
            if executor.name == "replay":
                confirmation = _confirm_replayed(result, self.task.settings, self.console)
                self.refuted = self.refuted or not (confirmation is None or confirmation.holds)
            if self.task.target is not None:
                _compile_for(self.task.target, result, self.task.settings, self.console)
        except KeyboardInterrupt:
            self.interrupted = True
            self.console.print("interrupted: the winner stands, but not all of it was compiled and checked here")
        return confirmation

    def _ship(self, result: SearchResult) -> None:
        """Hand a finished result on, if the command wants that; what cannot be shipped is said."""
        try:
            if self.task.ship is not None:
                self.task.ship(result)
        except (SearchError, TableError) as error:
            self.console.print(f"failed    {error}\n")
            self.failed += 1

    def _tell_saved(self, executor: Executor, result: SearchResult) -> None:
        note = "`autotune show` lists it"
        if executor.name == "replay":
            note = "a replay: where a measured row ships for the shape, that one is served and shown"
        folder = self.task.store.root / executor.device.slug / result.operation.name
        self.console.print(f"saved     {folder} ({note})\n")


def require_writable(root: Path, name: str) -> None:
    """Refuse a folder that cannot hold tables before anything is measured; ``name`` is of the argument.

    Raises:
        UsageError: the folder cannot be made or written.
    """
    parent = next(path for path in (root, *root.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=parent):  # permissions do not tell of read-only file systems; leaves nothing
            pass
    except OSError as error:
        problem = f"{name}={str(root)!r} cannot be written: {error.strerror}"
        raise UsageError(f"{problem}; name a folder with --out") from error


def _served(operation: Operation[Any], shape: Shape, device: Device) -> Config | None:
    """What the tables serve for a shape today, if they know more than the default."""
    kernel = get_kernel(shape, device=device.name, operation=operation.name)
    return None if kernel.provenance.rung == "default" else kernel.config


def _confirm_replayed(result: SearchResult, settings: Settings, console: Console) -> Confirmation | None:
    """Compile the finalists and check the winner's numbers on this CPU, and say exactly what was done where."""
    winner, operation = result.winner, result.operation
    assert winner is not None
    where = f"recorded on an {winner.device.name} with triton {winner.toolchain.triton}"
    console.print(f"recorded  times were not measured here but {where}")
    if operation.compiles_ahead:
        console.print("compiling the finalists and checking the winner's numbers ...")
    confirmation = confirm(operation, result.shape, winner.device, _finalists(result), winner.config, settings)
    console.print(*confirmation_lines(confirmation, operation, winner.device), sep="\n")
    return confirmation


def _compile_for(target: str, result: SearchResult, settings: Settings, console: Console) -> None:
    """Say whether the finalists would compile and fit another architecture; nothing of it is stored."""
    if not result.operation.compiles_ahead:
        console.print(f"target    nothing is compiled for {target}: {why_uncompiled(result.operation)}")
        return
    device = Device(name=target, arch=target, sm_count=1, memory_mib=1)
    space = result.operation.space
    default = space.default(result.shape, device)
    # Parameters that only the target has are those of its default.
    configs = [
        Config(
            {name: default[name] if config[name] is None or default[name] is None else config[name] for name in default}
        )
        for config in _finalists(result)
    ]
    for outcome in compile_all(result.operation, result.shape, device, dict.fromkeys([default, *configs]), settings):
        why = space.why_invalid(outcome.config, result.shape, device)
        text = compiled_text(outcome, device) + (f" (outside its space: {why})" if why else "")
        console.print(f"target    {outcome.config}: {text}")


def _finalists(result: SearchResult) -> list[Config]:
    """The winner and what was level with it."""
    assert result.winner is not None
    return list(dict.fromkeys([result.winner.config, *(trial.config for trial in result.ties)]))
