"""Plans count what is known and what cannot run, and take costs from what is recorded."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import dispatch
from autotune.dispatch.evidence import triton_here
from autotune.grid import GridTask
from autotune.grid.planning import plan_grid
from autotune.shape import AttentionShape
from autotune.table import Store, shipped_sweeps
from tests import sample


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    sample.hide_gpu(monkeypatch)
    dispatch.reload()
    yield tmp_path / "home"
    dispatch.reload()


def task(shape: AttentionShape, **changes: object) -> GridTask:
    usual = GridTask(operation="flash_attention", shape=shape, device="NVIDIA H200", implementations=("triton",))
    return replace(usual, **changes)  # type: ignore[arg-type]


def test_what_was_raced_is_known_and_the_rest_is_not(home: Path) -> None:
    (row,) = trials = [sample.trial(toolchain=replace(sample.TOOLCHAIN, triton=triton_here()))]
    Store(home).append(trials)
    dispatch.reload()
    planned = plan_grid([task(sample.shape()), task(sample.shape(64, head_dim=64))])
    assert [each.is_known for each in planned.tasks] == [True, False]
    assert planned.tasks[0].rung == "exact"
    (group,) = planned.groups
    assert (group.tasks, group.known, group.unsupported, group.assumed) == (2, 1, 0, 2)
    assert group.seconds - group.known_seconds == planned.tasks[1].seconds
    assert row.device.name == group.device


def test_seconds_are_within_the_budget_and_follow_the_trials(home: Path) -> None:
    few, many = (plan_grid([task(sample.shape(), budget=None, trials=count)]) for count in (10, 1000))
    short = plan_grid([task(sample.shape(), budget=5.0)])
    assert few.tasks[0].seconds < many.tasks[0].seconds
    assert short.tasks[0].seconds == 5.0


def test_an_unknown_device_is_planned_with_a_note(home: Path) -> None:
    planned = plan_grid([task(sample.shape(), device="NVIDIA Z9000")])
    assert "NVIDIA Z9000" in planned.notes[0]
    assert planned.tasks[0].seconds > 0


def test_costs_are_those_of_the_nearest_recorded_sweep() -> None:
    dispatch.reload()
    planned = plan_grid([task(sample.shape())])
    assert planned.tasks[0].pace_from in {sweep.name for sweep in shipped_sweeps("flash_attention")}
