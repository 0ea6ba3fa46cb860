"""The curve of a grid's throughput and of its driver's memory over workers, by replay: no GPU, a real Ray cluster.

``python -m benchmarks.grid_workers`` runs the engine of ``autotune search --grid`` over a cluster of one node on this
machine, for 1, 4, 16 and 64 workers in turn. A worker is a process of Ray's that searches a task by a recorded sweep;
each trial takes as long as one on a GPU does, in which it sleeps, so that a few cores hold many workers. All have
started before the clock does. ``--json`` prints the figures for programs, beside the table.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from autotune.device import NVIDIA_H200
from autotune.grid import GridTask
from autotune.grid.ray_connection import import_ray
from autotune.grid.ray_engine import run_on_ray
from autotune.shape import AttentionShape
from benchmarks.paced_replay import NAME, OPERATION, SECONDS

ROOT: Final = Path(__file__).parents[1]
WORKERS: Final = (1, 4, 16, 64)
TRIALS, TRIAL_SECONDS = 30, 0.5  # of a task, as long as on a GPU
ROUNDS: Final = 2  # tasks for each worker
OBJECT_STORE: Final = 80 * 2**20
COLUMNS: Final = {
    "workers": ("workers", "d"),
    "tasks": ("tasks", "d"),
    "wall s": ("wall_s", ".1f"),
    "tasks a minute": ("tasks_per_minute", ".1f"),
    "of linear": ("of_linear", ".0%"),
    "driver MB": ("driver_mb", ".0f"),
    "driver ms a task": ("driver_ms_per_task", ".1f"),
    "worker MB": ("worker_mb", ".0f"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grid_workers", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="numbers of workers")
    parser.add_argument("--seconds", type=float, default=TRIAL_SECONDS, help="that a trial takes")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, too")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)  # what a process of its own measures
    given = parser.parse_args(arguments)
    if given.only is not None:
        print(json.dumps(measure(given.only)))
        return
    print(f"{TRIALS} trials a task of {given.seconds:g} s each, {os.cpu_count()} cores")
    print("  ".join(f"{title:>{len(title)}}" for title in COLUMNS), flush=True)
    found: list[dict[str, Any]] = []
    for workers in given.workers:
        found.append(point := _in_own_process(workers, given.seconds))
        first = found[0]
        point["of_linear"] = point["tasks_per_minute"] * first["workers"] / first["tasks_per_minute"] / workers
        cells = (f"{point[key]:{form}}" for key, form in COLUMNS.values())
        print("  ".join(f"{cell:>{len(title)}}" for title, cell in zip(COLUMNS, cells, strict=True)), flush=True)
    if given.json:
        print(json.dumps(found))


def measure(workers: int) -> dict[str, Any]:
    """Run tasks over so many workers, in this process as the driver."""
    ray = import_ray()
    from ray.cluster_utils import Cluster

    node = {"num_cpus": workers, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args={**node, "resources": {NVIDIA_H200.name: 1}})
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            # One short task for each starts all, and loads what they import.
            _run(tasks(workers, trials=1), Path(folder, "begun"))
            before, own = time.perf_counter(), time.process_time()
            wanted = tasks(ROUNDS * workers, trials=TRIALS)
            _run(wanted, Path(folder, "place"))
            wall, own = time.perf_counter() - before, time.process_time() - own
            sizes = _worker_sizes()
    finally:
        ray.shutdown()
        cluster.shutdown()
    return {
        "workers": workers,
        "tasks": len(wanted),
        "wall_s": wall,
        "tasks_per_minute": 60 * len(wanted) / wall,
        "driver_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "driver_ms_per_task": 1e3 * own / len(wanted),
        "worker_mb": max(sizes, default=0.0),
        "worker_count": len(sizes),
    }


def tasks(count: int, *, trials: int) -> list[GridTask]:
    """Return searches of so many problems, each without a race: its trials alone."""
    return [
        GridTask(
            operation=OPERATION,
            shape=AttentionShape(batch=number + 1, heads=8, kv_heads=8, seq_q=1024, head_dim=128),
            device=NVIDIA_H200.name,
            implementations=(NAME,),
            budget=None,
            trials=trials,
            sampler="random",
        )
        for number in range(count)
    ]


def _run(wanted: Sequence[GridTask], place: Path) -> None:
    outcome = run_on_ray(wanted, place, replay=True, imports=["benchmarks.paced_replay"])
    if outcome.counts["done"] != len(wanted):
        sys.exit(f"benchmarks.grid_workers: {dict(outcome.counts)}; {outcome.failures[:1]}")


def _worker_sizes() -> list[float]:
    """Return the resident megabytes of the workers that have run a task."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith((b"ray::run_encoded", b"ray::IDLE")):
                pages = int((folder / "statm").read_text().split()[1])
                found.append(pages * resource.getpagesize() / 1e6)
        except OSError:  # it ended meanwhile
            continue
    return found


def _in_own_process(workers: int, seconds: float) -> dict[str, Any]:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.grid_workers", "--only", str(workers)],
        env={**os.environ, SECONDS: str(seconds), "PYTHONPATH": paths, "RAY_enable_metrics_collection": "0"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
