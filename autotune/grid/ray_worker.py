"""A worker of Ray runs one task of a grid; all that goes in and out is JSON."""

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autotune.errors import HostError, SupersededError
from autotune.executor.select import Settings
from autotune.grid.grid_task import GridTask
from autotune.grid.place import GridPlace
from autotune.grid.task_runner import run_task
from autotune.registry import register, register_implementation


def run_encoded(task: str, references: str, place: str, replay: bool, imports: Sequence[str]) -> str:
    """Run a task of JSON in a worker of Ray, and return its end as JSON, or ``unfit`` with the reason and its scope."""
    import ray

    for name in imports:
        importlib.import_module(name)
    given, known = json.loads(task), json.loads(references)
    register(given["operation"], known["operation"])
    for name, implementation in known["implementations"].items():
        register_implementation(given["operation"], name, implementation)
    try:
        ending = run_task(
            GridTask.from_dict(given),
            GridPlace(place),
            replay=replay,
            settings=None if replay else Settings(jobs=_jobs_here(ray)),
        )
    except HostError as error:
        return json.dumps({"unfit": str(error), "scope": error.scope})
    except SupersededError as error:
        return json.dumps({"state": "superseded", "message": str(error)})
    return json.dumps(asdict(ending))


def _jobs_here(ray: Any) -> int | None:
    """Return how many compilers a task may run, so that those of a host's GPUs do not crowd each other out."""
    own = ray.get_runtime_context().get_node_id()
    resources: dict[str, float] = next((each["Resources"] for each in ray.nodes() if each["NodeID"] == own), {})
    cores, gpus = resources.get("CPU"), resources.get("GPU")
    return max(1, int(cores // gpus)) if cores and gpus else None
