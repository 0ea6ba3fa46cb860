"""Runs ``autotune search --grid``: the tasks of a file on a Ray cluster, a line for each that ends."""

from typing import Final

from autotune.cli.grid.live_tasks import LiveTasks
from autotune.cli.grid_options import GridOptions
from autotune.console import interrupts
from autotune.console.command import imported_modules
from autotune.console.output import make_console, print_json
from autotune.errors import SearchError
from autotune.grid.ray_engine import GridOutcome, run_on_ray

REPLAYED: Final = (
    "A rehearsal: rows are of the recorded shapes that answered, which the lines `done` name. They are served only "
    "where nothing measured is, and a run on GPUs does every task again."
)


def run_grid(options: GridOptions, *, as_json: bool) -> GridOutcome:
    """Run a grid and print its progress and its counts; SearchError where a task is not done."""
    from autotune.grid.grid_file import read_grid

    interrupts.listen()
    tasks = read_grid(options.grid)
    wanted = len({task.key for task in tasks})
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
        how = {"interrupted": outcome.interrupted, "replayed": options.replay}
        print_json({"counts": outcome.counts, "failures": failures, **how})
    else:
        print(_counts_line(outcome, wanted))
        if options.replay:
            print(REPLAYED)
    if outcome.interrupted:
        interrupts.stop()
    if left := wanted - _finished(outcome):
        raise SearchError(f"{left} of {wanted} tasks are not done: see the lines `failed` and `superseded`")
    return outcome


def _finished(outcome: GridOutcome) -> int:
    return outcome.counts["done"] + outcome.counts["skipped"]


def _counts_line(outcome: GridOutcome, wanted: int) -> str:
    """Return how many tasks are done, and how many came to each other end.

    Example:
        >>> _counts_line(GridOutcome(Counter(skipped=2, submitted=3, done=3)), 5)
        '5 of 5 tasks are done: 3 now, 2 before'
    """
    counts = outcome.counts
    ends = [f"{counts[state]} {state}" for state in ("failed", "interrupted", "superseded", "moved") if counts[state]]
    here = f"{counts['done']} now, {counts['skipped']} before"
    return "; ".join([f"{_finished(outcome)} of {wanted} tasks are done: {here}", *ends])
