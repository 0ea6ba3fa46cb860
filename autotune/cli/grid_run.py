"""Runs ``autotune search --grid``: the tasks of a file on a Ray cluster, a line for each that ends."""

import json

from autotune.cli.grid.live_tasks import LiveTasks
from autotune.cli.grid_options import GridOptions
from autotune.console import interrupts
from autotune.console.command import imported_modules
from autotune.console.output import make_console
from autotune.errors import SearchError
from autotune.grid.ray_engine import GridOutcome, run_on_ray


def run_grid(options: GridOptions, *, as_json: bool) -> GridOutcome:
    """Run a grid and print its progress; SearchError where a task failed."""
    from autotune.grid.grid_file import read_grid

    interrupts.listen()
    tasks = read_grid(options.grid)
    with LiveTasks(make_console(as_json), tasks, title=str(options.grid)) as observer:
        outcome = run_on_ray(
            tasks,
            options.place,
            address=options.address,
            replay=options.replay,
            imports=imported_modules(),
            observer=observer,
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
