"""``autotune search --grid``: the tasks of a file go to a Ray cluster, and what failed is said."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autotune.cli import grid_run
from autotune.cli.grid.live_tasks import LiveTasks
from autotune.grid import GridTask
from autotune.grid.ray_engine import GridOutcome
from autotune.shape import AttentionShape
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]

TASKS = [
    GridTask(operation="flash_attention", shape=AttentionShape(batch=1, heads=2, seq_q=seq, head_dim=64), device="H200")
    for seq in (128, 256)
]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> dict[str, Any]:
    """The arguments of the engine, which lets the second task fail."""
    found: dict[str, Any] = {}

    def run_on_ray(tasks: list[GridTask], place: str, **given: Any) -> GridOutcome:
        found.update(given, tasks=tasks, place=place)
        given["observer"].on_missing("H200", 2)
        for task in tasks:
            given["observer"].on_task(task, "submitted")
        given["observer"].on_task(tasks[0], "done")
        given["observer"].on_task(tasks[1], "failed", "no config")
        return GridOutcome(Counter(submitted=2, done=1, failed=1), [(tasks[1], "no config")])

    monkeypatch.setattr(grid_run, "run_on_ray", run_on_ray)
    stand_in = ModuleType("autotune.grid.grid_file")
    stand_in.read_grid = lambda path: list(TASKS)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    return found


def test_the_tasks_of_a_file_go_to_the_cluster(called: dict[str, Any], run: Run) -> None:
    ran = run("search", "--grid", "g.toml", "--engine", "ray", "--place", "s3://b/c", "--address", "head:6379")
    assert ran.code == 1
    lines = f"{ran.out}{ran.err}"
    for line in ("no node of Ray carries the label 'H200'", "done ", "no config (0 left)", "1 of 2 tasks are not done"):
        assert line in " ".join(lines.split())
    assert ran.out.endswith("1 of 2 tasks are done: 1 now, 0 before; 1 failed\n")
    observer = called.pop("observer")
    assert isinstance(observer, LiveTasks)
    assert called == {"tasks": TASKS, "place": "s3://b/c", "address": "head:6379", "replay": False, "imports": ()}


def test_workers_import_what_the_command_imports(called: dict[str, Any], run: Run) -> None:
    run("search", "--grid", "g.toml", "--place", "p", "--replay", "--import", "json")
    assert (called["imports"], called["replay"]) == (("json",), True)


def test_a_place_with_credentials_stands_in_the_environment(
    called: dict[str, Any], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_PLACE", "s3://KEY:SECRET@b/c")
    ran = run("search", "--grid", "g.toml")
    assert called["place"] == "s3://KEY:SECRET@b/c"
    assert "SECRET" not in f"{ran.out}{ran.err}"


@pytest.mark.parametrize(("state", "code"), [("skipped", 0), ("superseded", 1)])
def test_the_command_fails_where_a_task_is_not_done(
    called: dict[str, Any], run: Run, monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    monkeypatch.setattr(grid_run, "run_on_ray", lambda *_, **given: GridOutcome(Counter({"done": 1, state: 1})))
    assert run("search", "--grid", "g.toml", "--place", "p").code == code


def test_a_rehearsal_says_that_it_is_one(called: dict[str, Any], run: Run) -> None:
    said = " ".join(run("search", "--grid", "g.toml", "--place", "p", "--replay").out.split())
    assert "A rehearsal: rows are of the recorded shapes that answered" in said
    assert "rehearsal" not in run("search", "--grid", "g.toml", "--place", "p").out
    assert json.loads(run("search", "--grid", "g.toml", "--place", "p", "--replay", "--json").out)["replayed"] is True


def test_json_has_the_counts_and_the_failures(called: dict[str, Any], run: Run) -> None:
    found = json.loads(run("search", "--grid", "g.toml", "--place", "p", "--json").out)
    assert found["counts"] == {"submitted": 2, "done": 1, "failed": 1}
    assert [(each["key"], each["message"]) for each in found["failures"]] == [(TASKS[1].key, "no config")]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--grid g.toml", "--grid needs --place, where its results go"),
        ("--grid g.toml --place p --engine slurm", "--engine='slurm' is unknown; allowed: ray"),
        ("--grid g.toml --place p --seed 0", "--seed=0 and --grid exclude each other; write seed into the file"),
        (
            "--grid g.toml --place p --gpus all",
            "--gpus='all' and --grid exclude each other; leave it out: nodes measure in the usual way",
        ),
        ("--grid g.toml --place p --above 5%", "--above='5%' and --grid exclude each other"),
        ("--grid g.toml --place p --policy graph", "--policy='graph' and --grid exclude each other"),
        ("--grid g.toml --place p --cache cold", "--cache='cold' and --grid exclude each other"),
        ("--grid g.toml --place p --jobs 2", "--jobs=2 and --grid exclude each other"),
        ("--grid g.toml --place p --timeout 9", "--timeout=9.0 and --grid exclude each other"),
        ("--grid g.toml --place p --compile-timeout 9", "--compile-timeout=9.0 and --grid exclude each other"),
        (
            "--grid g.toml --place s3://KEY:SECRET@b/c",
            "--place='s3://***@b/c' holds credentials, which others can read here; put the URI into AUTOTUNE_PLACE",
        ),
        ("--place p", "--place='p' needs a grid; name its file by --grid FILE"),
        ("--replay", "--replay needs a grid; name its file by --grid FILE"),
        ("--grid g.toml --place p --seq 128", "exclude each other"),
        ("--grid g.toml --place p --trials 3", "--trials=3 and --grid exclude each other"),
        (
            "--grid g.toml --place p --implementation triton",
            "--implementation='triton' and --grid exclude each other; write implementations into the file",
        ),
    ],
)
def test_what_a_grid_does_not_take_is_refused(
    called: dict[str, Any], run: Run, arguments: str, error: str, tmp_path: Path
) -> None:
    ran = run("search", *arguments.split())
    assert ran.code == 2
    assert error in " ".join(ran.err.split())
    assert called == {}
