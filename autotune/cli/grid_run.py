"""Runs ``autotune search --grid``: the tasks of a file on a Ray cluster, a line for each that ends."""

import json
from typing import Any

from autotune.cli.grid_options import GridOptions
from autotune.console import interrupts
from autotune.console.command import imported_modules
from autotune.console.output import make_console
from autotune.errors import SearchError
from autotune.grid import GridTask
from autotune.grid.ray_engine import GridOutcome, TaskState, run_on_ray


class PrintedTasks:
    """Implements ``TaskObserver``: prints how tasks ended, and why they moved."""

    def __init__(self, console: Any, tasks: int) -> None:
        self._console = console
        self._left = tasks

    def on_task(self, task: GridTask, state: TaskState, message: str = "") -> None:
        """Print a line, but for what was only handed over or left out."""
        self._left -= state not in ("submitted", "moved")
        if state not in ("submitted", "skipped"):
            why = f": {message}" if message else ""
            self._console.print(f"{state:<12}{task}{why} ({self._left} left)", markup=False)

    def on_missing(self, device: str, waiting: int) -> None:
        """Print that tasks wait for nodes."""
        self._console.print(f"waiting     {waiting} tasks: no node of Ray carries the label {device!r}", markup=False)


def run_grid(options: GridOptions, *, as_json: bool) -> GridOutcome:
    """Run a grid and print its progress; SearchError where a task failed."""
    from autotune.grid.grid_file import read_grid

    interrupts.listen()
    tasks = read_grid(options.grid)
    outcome = run_on_ray(
        tasks,
        options.place,
        address=options.address,
        replay=options.replay,
        imports=imported_modules(),
        observer=PrintedTasks(make_console(as_json), len(tasks)),
    )
    if as_json:
        failures = [{"key": task.key, "task": task.as_dict(), "message": why} for task, why in outcome.failures]
        print(
            json.dumps({"counts": outcome.counts, "failures": failures, "interrupted": outcome.interrupted}, indent=2)
        )
    if outcome.interrupted:
        interrupts.stop()
    if outcome.failures:
        raise SearchError(f"{len(outcome.failures)} of {len(tasks)} tasks failed: see the lines `failed`")
    return outcome
