"""``autotune grid``: the plan and the status of a grid, as text and as JSON that says the same."""

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from autotune.cli.grid.live_tasks import LiveTasks
from autotune.grid import Attempt, AttemptEnd, GridPlace
from autotune.grid.grid_file import read_grid
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
GRID = '[[grid]]\nmodel = "llama-3.1-8b"\nlengths = [512, 1024]\ndevice = "H200"\n'


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    (path := tmp_path / "grid.toml").write_text(GRID, encoding="utf-8")
    return path


def _begin(path: Path, place: Path) -> tuple[Attempt, AttemptEnd]:
    task = read_grid(path)[0]
    attempt = Attempt(
        task=task.key,
        number=1,
        token="a1",
        host="node",
        device=task.device,
        power_cap_watts=500.0,
        toolchain="triton 3.6.0",
        started=datetime.now(UTC),
    )
    ending = AttemptEnd(task=task.key, token="a1", state="failed", seconds=2.0, trials={"hang": 1}, message="no config")
    GridPlace(place).begin(attempt)
    return attempt, ending


def test_a_plan_counts_studies_and_hours(run: Run, grid: Path) -> None:
    ran = run("grid", "plan", grid)
    assert (ran.code, "4 studies" in ran.out, "paged_decode" in ran.out) == (0, True, True)
    data = json.loads(run("grid", "plan", grid, "--json").out)
    assert [each["studies"] for each in data["groups"]] == [2, 2]
    assert data["gpu_hours"] == pytest.approx(sum(each["seconds"] for each in data["tasks"]) / 3600)


def test_a_status_tells_power_caps_apart_and_names_failures(run: Run, grid: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    _, ending = _begin(grid, place)
    GridPlace(place).end(ending)
    ran = run("grid", "status", place, grid)
    assert "3 waiting, 1 failed" in ran.out
    assert "500 W" in ran.out
    assert "no config" in ran.out
    data = json.loads(run("grid", "status", place, grid, "--json").out)
    assert data["states"] == {"waiting": 3, "running": 0, "done": 0, "failed": 1, "lost": 0}
    assert data["trials"] == {"hang": 1}
    assert {each["power_cap_watts"] for each in data["runners"]} == {None, 500.0}


def test_wrong_arguments_are_refused(run: Run, grid: Path, tmp_path: Path) -> None:
    assert run("grid", "status", tmp_path, "--watch", "--json").code == 2
    ran = run("grid", "plan", tmp_path / "none.toml")
    assert (ran.code, "none.toml: cannot be read" in ran.err) == (2, True)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_live_table_follows_what_the_engine_reports(grid: Path, *, is_terminal: bool) -> None:
    tasks = read_grid(grid)
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=200, highlight=False)
    with LiveTasks(console, tasks, title="llama") as observer:
        for _ in range(2):
            observer.on_missing(tasks[0].device, 4)
        observer.on_task(tasks[0], "submitted")
        observer.on_task(tasks[1], "submitted")
        observer.on_task(tasks[0], "failed", "no config")
        observer.on_task(tasks[1], "done")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count("no node of Ray carries the label") == 1
    assert "no config (3 left)" in text
    assert ("llama: 2 waiting, 1 done, 1 failed" in text) == is_terminal
    assert ("done        flash" in text) != is_terminal
