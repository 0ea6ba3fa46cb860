"""A run of the engine on a fake cluster: what it is given, and what it reports."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.grid import Attempt, GridTask, ray_engine
from autotune.grid.ray_engine import GridOutcome, TaskState, run_on_ray
from tests.grid.fake_ray import FakeRay
from tests.grid.recorded_grid import task
from tests.grid.replay_worker import study_of

H200: Final = "NVIDIA H200"
H100: Final = "NVIDIA H100 80GB HBM3"
DONE: Final = json.dumps({"state": "done", "message": ""})


class Run:
    """One run on a fake cluster, and what it reported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ray: FakeRay, place: Path) -> None:
        self.ray, self.place = ray, place
        self.states: list[tuple[int, TaskState]] = []
        self.missing: list[tuple[str, int]] = []
        monkeypatch.setattr(ray_engine, "import_ray", lambda: ray)

    def on_task(self, task: GridTask, state: TaskState, message: str = "") -> None:
        self.states.append((study_of(task), state))

    def on_missing(self, device: str, waiting: int) -> None:
        self.missing.append((device, waiting))

    def run(self, tasks: list[GridTask], **options: Any) -> GridOutcome:
        return run_on_ray(tasks, self.place, observer=self, **options)

    def order(self) -> list[int]:
        return [study for study, state in self.states if state == "submitted"]


def begun(study: int, **changes: Any) -> Attempt:
    fields: dict[str, Any] = {"task": task(study).key, "number": 1, "token": "f0", "host": "node", "device": H200}
    fields |= {"power_cap_watts": 700.0, "toolchain": "triton 3.6.0", "started": datetime.now(UTC)}
    return Attempt(**{**fields, **changes})


def node(gpus: int = 1, label: str = H200) -> dict[str, float]:
    return {"CPU": 8, "GPU": gpus, label: 1}
