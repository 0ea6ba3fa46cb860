"""The same grid by Ray: a cluster of this host alone, one task a GPU."""

import os
from collections.abc import Sequence
from pathlib import Path

from autotune.grid.grid_task import GridTask
from autotune.grid.ray_engine import TaskState, run_on_ray
from autotune.table import Store, ranked
from autotune.trial import Trial
from autotune.workload import Workload
from benchmarks.many_gpus.tuned_grid import GridRun, Study, grid, measured, this_host


class Printed:
    """Prints each task that ended otherwise than done."""

    def on_task(self, task: GridTask, state: TaskState, message: str = "") -> None:
        if message and state != "done":
            print(f"  {state}: {task}: {message}", flush=True)

    def on_missing(self, device: str, waiting: int) -> None:
        print(f"  no node has {device!r}", flush=True)


def run_by_ray(gpus: int, *, trials: int, budget: float) -> GridRun:
    """Tune the grid as tasks of a Ray cluster that is started here, on the first GPUs, in a process of its own.

    One that runs here already would be joined instead, with its GPUs and its Triton cache: stop it before.
    """
    os.environ.pop("RAY_ADDRESS", None)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[:gpus])
    works = grid()
    tasks = [
        GridTask(operation=operation.name, shape=shape, trials=trials, budget=budget) for operation, shape in works
    ]
    with measured() as (folder, found):
        outcome = run_on_ray(tasks, folder / "place", observer=Printed())
        if outcome.interrupted:
            raise KeyboardInterrupt
        studies = read_studies(works, folder / "place")
    return GridRun(this_host(), found.seconds, None, found.memory_mb, (), studies)


def read_studies(works: Sequence[Workload], place: Path) -> tuple[Study, ...]:
    """Read the winners of a place's tables, in the order of their problems."""
    store = Store(place / "tables")
    rows = {operation: store.winners(operation.name) for operation in {operation for operation, _ in works}}
    return tuple(_study(ranked(row for row in rows[operation] if row.shape == shape)) for operation, shape in works)


def _study(rows: Sequence[Trial]) -> Study:
    """Return the result of a search by the winner of each of its implementations, the best first."""
    if not rows:
        return Study(None, failure="no winner is at the place")
    return Study(rows[0].candidate, None if rows[0].timing is None else rows[0].timing.median_us)
