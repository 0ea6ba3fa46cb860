"""The same grid by Ray: a cluster of this host alone, one task a GPU."""

from collections.abc import Sequence
from pathlib import Path

from autotune.grid.grid_task import GridTask
from autotune.grid.ray_engine import TaskState, run_on_ray
from autotune.table import Store
from autotune.trial import Trial
from autotune.workload import Workload
from benchmarks.many_gpus.tuned_grid import GridRun, Study, grid, measured


class Printed:
    """Prints each task that ended otherwise than done."""

    def on_task(self, task: GridTask, state: TaskState, message: str = "") -> None:
        if message and state != "done":
            print(f"  {state}: {task}: {message}", flush=True)

    def on_missing(self, device: str, waiting: int) -> None:
        print(f"  no node has {device!r}", flush=True)


def run_by_ray(*, trials: int, budget: float) -> GridRun:
    """Tune the grid as tasks of a Ray cluster, which is started and ended here, on all visible GPUs."""
    works = grid()
    tasks = [
        GridTask(operation=operation.name, shape=shape, trials=trials, budget=budget) for operation, shape in works
    ]
    with measured() as (folder, found):
        outcome = run_on_ray(tasks, folder / "place", observer=Printed())
        if outcome.interrupted:
            raise KeyboardInterrupt
        studies = read_studies(works, folder / "place")
    return GridRun(found.seconds, None, found.memory_mb, (), studies)


def read_studies(works: Sequence[Workload], place: Path) -> tuple[Study, ...]:
    """Read the winners of a place's tables, in the order of their problems."""
    store = Store(place / "tables")
    rows: dict[Workload, Trial] = {
        (operation, row.shape): row
        for operation in dict.fromkeys(operation for operation, _ in works)
        for row in store.winners(operation.name)
    }
    return tuple(
        Study(None, failure="no winner is at the place")
        if (row := rows.get(work)) is None
        else Study(row.candidate, None if row.timing is None else row.timing.median_us)
        for work in works
    )
