"""Progress is counted from the records of attempts alone, and apart where rows would not mix."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autotune.grid import Attempt, AttemptEnd, GridPlace, GridTask
from autotune.grid.attempt import encode
from autotune.grid.progress import GridProgress, Ledger
from autotune.shape import AttentionShape

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
TASKS = [
    GridTask(
        operation="flash_attention",
        shape=AttentionShape(batch=batch, heads=8, seq_q=128, head_dim=64),
        device="NVIDIA H200",
    )
    for batch in range(1, 8)
]


def begun(task: GridTask, minutes: float, **changes: object) -> Attempt:
    usual = Attempt(
        task=task.key,
        number=1,
        token="a1",
        host="node-1",
        device="NVIDIA H200",
        power_cap_watts=700.0,
        toolchain="triton 3.6.0",
        started=NOW - timedelta(minutes=minutes),
    )
    return replace(usual, **{"token": f"{TASKS.index(task):02x}", **changes})  # type: ignore[arg-type]


def ended(attempt: Attempt, state: str, **trials: int) -> AttemptEnd:
    message = "no correct candidate" if state == "failed" else ""
    return AttemptEnd(
        task=attempt.task,
        token=attempt.token,
        state=state,  # type: ignore[arg-type]
        seconds=30.0,
        trials=trials,
        message=message,
    )


def read_progress(place: GridPlace, tasks: list[GridTask]) -> GridProgress:
    ledger = Ledger(tasks)
    ledger.read(place)
    return ledger.progress(NOW)


def test_states_trials_and_runners_are_told_apart(tmp_path: Path) -> None:
    place = GridPlace(tmp_path)
    done, failed, running, lost, again, stopped = (begun(task, minutes=1) for task in TASKS[:6])
    lost = replace(lost, started=NOW - timedelta(hours=1), power_cap_watts=500.0)
    failed = replace(failed, toolchain="triton 3.9.0", host="node-2")
    later = replace(again, number=2, token="ff")
    for attempt in (done, failed, running, lost, again, later, stopped):
        place.begin(attempt)
    for ending in (
        *(ended(done, "done", ok=3), ended(failed, "failed", hang=1)),
        *(ended(again, "interrupted", ok=2), ended(later, "done", ok=1), ended(stopped, "interrupted")),
    ):
        place.end(ending)
    found = read_progress(place, TASKS)
    assert found.states == {"waiting": 2, "running": 1, "done": 2, "failed": 1, "lost": 1}
    assert found.trials == {"hang": 1, "ok": 6}
    assert found.failures == ((str(TASKS[1]), "no correct candidate"),)
    told = {(each.runner.power_cap_watts, each.runner.toolchain): dict(each.states) for each in found.runners}
    assert told == {
        (None, ""): {"waiting": 1},
        (700.0, "triton 3.6.0"): {"waiting": 1, "running": 1, "done": 2},
        (700.0, "triton 3.9.0"): {"failed": 1},
        (500.0, "triton 3.6.0"): {"lost": 1},
    }
    (device,) = found.devices
    assert (device.left, device.running, device.seconds_left) == (4, 1, 4 * 30.0 - 30.0)
    assert not found.is_over


def test_without_a_grid_only_what_was_begun_is_counted(tmp_path: Path) -> None:
    place = GridPlace(tmp_path)
    assert read_progress(place, []).states == {}
    place.begin(begun(TASKS[0], minutes=1))
    found = read_progress(place, [])
    assert (found.states, found.is_whole) == ({"running": 1}, False)


def test_what_is_lost_ends_a_grid_and_what_waits_does_not() -> None:
    ledger = Ledger()
    ledger.add([begun(TASKS[0], minutes=24 * 60), attempt := begun(TASKS[1], minutes=1)], [])
    assert not ledger.progress(NOW).is_over
    ledger.add([], [ended(attempt, "done")])
    found = ledger.progress(NOW)
    assert (dict(found.states), found.is_over) == ({"done": 1, "lost": 1}, True)
    assert not Ledger(TASKS).progress(NOW).is_over


def test_a_record_is_read_once(tmp_path: Path) -> None:
    place, ledger = GridPlace(tmp_path), Ledger(TASKS[:1])
    attempt = begun(TASKS[0], minutes=1)
    place.begin(attempt)
    ledger.read(place)
    (record,) = tmp_path.rglob("*.begun.json")
    record.write_bytes(b"{")  # which reading it again would refuse
    place.end(ended(attempt, "done"))
    ledger.read(place)
    assert ledger.progress(NOW).is_over


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("1-ff.begun.json", b""),
        ("1-ff.begun.json", b"[]"),
        ("1-ff.begun.json", b'{"started": "2026-11-25"}'),
        ("ff.ended.json", b"{"),
        ("ff.ended.json", b'{"task": "00", "token": "ff", "state": "done", "seconds": null}'),
        ("ff.ended.json", b'{"task": "00", "token": "ff", "state": "odd", "seconds": 1}'),
    ],
)
def test_a_damaged_record_is_warned_of_and_passed_over(tmp_path: Path, name: str, data: bytes) -> None:
    place, ledger = GridPlace(tmp_path), Ledger(TASKS)
    attempt = begun(TASKS[0], minutes=1)
    place.begin(attempt)
    place.end(ended(attempt, "done"))
    place.folder.write(f"tasks/{TASKS[1].key}/{name}", data)
    with pytest.warns(RuntimeWarning, match=name):
        ledger.read(place)
    ledger.read(place)  # which says it no second time
    assert ledger.progress(NOW).states == {"waiting": 6, "done": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"number": "2"},
        {"number": 2.5},
        {"token": 5},
        {"host": None},
        {"device": []},
        {"power_cap_watts": {}},
        {"power_cap_watts": "700"},
        {"toolchain": {}},
        {"started": 5},
        {"executor": "tpu"},
    ],
    ids=str,
)
def test_a_beginning_with_an_odd_field_is_passed_over(tmp_path: Path, change: dict[str, Any]) -> None:
    place, ledger = GridPlace(tmp_path), Ledger(TASKS[:1])
    attempt = begun(TASKS[0], minutes=1)
    place.begin(attempt)
    odd = json.loads(encode(replace(attempt, token="ff"))) | change
    place.folder.write(f"tasks/{TASKS[0].key}/2-ff.begun.json", json.dumps(odd).encode())
    with pytest.warns(RuntimeWarning, match="is not an attempt"):
        ledger.read(place)
    assert ledger.progress(NOW).states == {"running": 1}


@pytest.mark.parametrize(
    "change",
    [{"seconds": "1"}, {"seconds": math.inf}, {"trials": {"ok": None}}, {"message": None}, {"token": 5}],
    ids=str,
)
def test_an_ending_with_an_odd_field_is_passed_over(tmp_path: Path, change: dict[str, Any]) -> None:
    place, ledger = GridPlace(tmp_path), Ledger(TASKS[:1])
    attempt = begun(TASKS[0], minutes=1)
    place.begin(attempt)
    odd = json.loads(encode(ended(attempt, "done"))) | change
    place.folder.write(f"tasks/{TASKS[0].key}/{attempt.token}.ended.json", json.dumps(odd).encode())
    with pytest.warns(RuntimeWarning, match="is not the end of an attempt"):
        ledger.read(place)
    assert ledger.progress(NOW).states == {"running": 1}


def test_a_task_is_done_by_its_end_where_its_beginning_is_damaged(tmp_path: Path) -> None:
    ledger = Ledger(TASKS[:1])
    ledger.add([], [ended(begun(TASKS[0], minutes=1), "done")])
    assert ledger.progress(NOW).states == {"done": 1}


def test_a_rehearsal_says_nothing_of_a_gpus_time() -> None:
    """A recorded sweep answers in seconds, on no GPU."""
    replayed, measured = (
        begun(each, minutes=1, executor=by) for each, by in zip(TASKS, ("replay", "gpu"), strict=False)
    )
    ledger = Ledger(TASKS)
    ledger.add([replayed], [ended(replayed, "done")])
    assert ledger.progress(NOW).devices[0].gpu_seconds_left == 6 * 60.0  # by the budgets
    ledger.add([measured], [ended(measured, "done")])
    assert ledger.progress(NOW).devices[0].gpu_seconds_left == 5 * 30.0


def test_before_anything_is_done_the_time_left_is_by_the_budgets() -> None:
    (device,) = Ledger(TASKS).progress(NOW).devices
    assert (device.left, device.gpu_seconds_left, device.seconds_left) == (7, 7 * 60.0, None)
