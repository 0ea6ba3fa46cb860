"""``autotune grid``: the plan and the status of a grid, as text and as JSON that says the same."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from autotune.cli.grid.live_tasks import LiveTasks
from autotune.errors import TableError
from autotune.grid import Attempt, AttemptEnd, GridPlace
from autotune.grid.grid_file import read_grid
from autotune.grid.progress import Ledger
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
    assert (ran.code, "4 tasks" in ran.out, "paged_decode" in ran.out) == (0, True, True)
    data = json.loads(run("grid", "plan", grid, "--json").out)
    assert [each["tasks"] for each in data["groups"]] == [2, 2]
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


def test_a_status_tells_a_rehearsal_from_what_a_gpu_measured(run: Run, grid: Path, tmp_path: Path) -> None:
    place = GridPlace(tmp_path / "place")
    attempt, _ = _begin(grid, tmp_path / "place")
    place.begin(replace(attempt, number=2, token="b2", executor="replay"))
    place.end(AttemptEnd(task=attempt.task, token="b2", state="done", seconds=2.0))
    ran = run("grid", "status", place, grid)
    assert f"{attempt.device}, replayed" in ran.out
    data = json.loads(run("grid", "status", place, grid, "--json").out)
    assert {(each["executor"], each["states"].get("done", 0)) for each in data["runners"]} == {
        ("gpu", 0),
        ("replay", 1),
    }


def test_wrong_arguments_are_refused(run: Run, grid: Path, tmp_path: Path) -> None:
    assert run("grid", "status", tmp_path, "--watch", "--json").code == 2
    ran = run("grid", "status", tmp_path / "absent")
    assert (ran.code, "is not there" in ran.err) == (2, True)
    ran = run("grid", "plan", tmp_path / "none.toml")
    assert (ran.code, "none.toml: cannot be read" in ran.err) == (2, True)


def test_a_watch_goes_on_after_an_error_and_ends_without_a_grid_where_a_task_is_lost(
    run: Run, grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = GridPlace(tmp_path / "place")
    attempt, ending = _begin(grid, tmp_path / "place")
    lost = replace(attempt, task="ab", token="b2", started=attempt.started - timedelta(days=1))
    place.begin(lost)
    looks, read = iter(range(9)), Ledger.read

    def look(ledger: Ledger, where: GridPlace) -> None:
        if (number := next(looks)) == 1:
            raise TableError("the bucket does not answer")
        if number == 2:
            place.end(ending)
        read(ledger, where)

    monkeypatch.setattr(Ledger, "read", look)
    ran = run("grid", "status", tmp_path / "place", "--watch", "--every", "0.1")
    assert (ran.code, next(looks)) == (0, 3)
    assert "the bucket does not answer" in ran.out
    assert "1 failed, 1 lost" in ran.out


def test_the_place_of_the_environment_stands_for_one_that_is_not_given(
    run: Run, grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_PLACE", str(tmp_path / "place"))
    _begin(grid, tmp_path / "place")
    for arguments, counts in (((), "1 running"), ((grid,), "3 waiting, 1 running"), ((tmp_path,), "nothing begun")):
        ran = run("grid", "status", *arguments)
        assert (ran.code, counts in ran.out) == (0, True), ran


def test_a_file_is_no_place(run: Run, grid: Path) -> None:
    for arguments in ((grid.parent / "grid.toml",), (grid, grid)):
        ran = run("grid", "status", *arguments)
        assert (ran.code, "is a file; expected a folder" in " ".join(ran.err.split())) == (1, True), ran.err


def test_a_misspelt_device_is_planned_with_a_suggestion(run: Run, grid: Path) -> None:
    grid.write_text(grid.read_text().replace("H200", "NVIDA H200"))
    said = " ".join(run("grid", "plan", grid).out.split())
    assert "knows 'NVIDA H200': planned without recordings, by assumed costs; did you mean 'NVIDIA H200'?" in said


def test_a_place_with_credentials_is_refused_on_the_command_line(run: Run) -> None:
    ran = run("grid", "status", "s3://KEYID:HUSHHUSH@bucket/llama")
    assert (ran.code, "AUTOTUNE_PLACE" in ran.err, "HUSH" in ran.err) == (2, True, False)


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
