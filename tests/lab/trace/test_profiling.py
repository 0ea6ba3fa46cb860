"""Steps run as the schedule says, traces hold them, operators are ranked, and devices are waited for."""

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.errors import MissingDependencyError, UnknownNameError, UsageError
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.lab.trace import profiling
from autotune.lab.trace.command import trace_data, trace_sheets, viewer_lines
from autotune.lab.trace.operator_times import STEP, top_operators
from autotune.lab.trace.profiling import Schedule, choose_trace_device, move, trace_all, trace_call
from autotune.registry import get_operation
from autotune.shape import AttentionShape
from tests import sample
from tests.kernels.baselines.gaudi.habana import Gaudi, install

SHAPE = AttentionShape(batch=1, heads=2, seq_q=16, head_dim=8, dtype="float32")
OPERATION = get_operation("flash_attention")


def counted() -> tuple[list[int], Callable[[], torch.Tensor]]:
    """A product that is larger than the sum beside it, and how often it was called."""
    calls: list[int] = []
    matrix = torch.ones(64, 64)

    def call() -> torch.Tensor:
        calls.append(len(calls))
        return matrix @ matrix @ matrix @ matrix + 1.0

    return calls, call


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


@pytest.fixture
def all_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them take longest is a matter of luck for small inputs."""
    monkeypatch.setattr(profiling, "TOP", 1000)


def test_schedule_names_the_phase_of_each_step() -> None:
    schedule = Schedule(wait=1, warmup=1, active=2, repeat=2)
    assert schedule.steps == 8
    phases = ["wait", "warm-up", "active", "active"]
    assert [schedule.phase(step) for step in range(8)] == phases * 2
    assert Schedule().steps == 4


@pytest.mark.parametrize("wrong", [{"active": 0}, {"repeat": 0}, {"wait": -1}, {"warmup": -1}])
def test_schedule_without_steps_is_refused(wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"^{name}="):
        Schedule(**wrong)


@pytest.mark.parametrize(
    "schedule", [Schedule(), Schedule(wait=1, warmup=0, active=2), Schedule(active=1, repeat=2)], ids=str
)
def test_trace_holds_the_recorded_steps(tmp_path: Path, schedule: Schedule) -> None:
    calls, call = counted()
    traced = trace_call("a product", call, tmp_path / "new", schedule=schedule)
    assert len(calls) == len(traced.steps) == schedule.steps
    assert [step.number for step in traced.steps] == list(range(schedule.steps))
    assert all(step.milliseconds > 0.0 for step in traced.steps)
    assert len(traced.files) == schedule.repeat
    recorded = [step.number for step in traced.steps if step.phase == "active"]
    for cycle, file in enumerate(traced.files):
        names = {event["name"] for event in events(file) if str(event.get("name")).startswith(STEP)}
        expected = recorded[cycle * schedule.active : (cycle + 1) * schedule.active]
        assert names == {f"{STEP} {number}" for number in expected}


@pytest.mark.usefixtures("all_operators")
def test_operators_are_those_of_the_recorded_steps(tmp_path: Path) -> None:
    _, call = counted()
    traced = trace_call("a product", call, tmp_path, schedule=Schedule(active=2, repeat=2))
    by_name = {operator.name: operator for operator in traced.operators}
    assert by_name["aten::mm"].calls == 3 * 2 * 2
    assert by_name["aten::add"].calls == 2 * 2
    assert traced.timed_on == "cpu"
    times = [operator.milliseconds for operator in traced.operators]
    assert times == sorted(times, reverse=True)
    assert sum(operator.share for operator in traced.operators) <= 1.0 + 1e-9
    assert not any(".py(" in name or name.startswith(STEP) for name in by_name)


@pytest.mark.parametrize("stacks", [True, False])
def test_stacks_are_an_option(tmp_path: Path, stacks: bool) -> None:
    _, call = counted()
    (file,) = trace_call("a product", call, tmp_path, schedule=Schedule(active=1), stacks=stacks).files
    assert file.name == "a_product.json.gz"
    assert any(event.get("cat") == "python_function" for event in events(file)) == stacks


@pytest.mark.usefixtures("all_operators")
def test_implementations_have_a_trace_each_or_a_reason(tmp_path: Path) -> None:
    found = {
        each.name: each
        for each in trace_all(
            OPERATION, SHAPE, ["eager", "sdpa math", "cudnn"], tmp_path, device="cpu", schedule=Schedule(active=1)
        )
    }
    assert {path.name for path in tmp_path.iterdir()} == {"eager.json.gz", "sdpa_math.json.gz"}
    assert "NVIDIA GPU" in found["cudnn"].message
    assert any("softmax" in operator.name for operator in found["eager"].operators)


def test_folder_that_cannot_be_written_is_no_implementations_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        list(trace_all(OPERATION, SHAPE, ["eager"], tmp_path / "file", device="cpu"))


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
def test_gaudi_ends_a_step_and_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lazy: bool) -> None:
    device = Gaudi(lazy=lazy)
    install(monkeypatch, device)
    results: list[torch.Tensor] = []

    def call() -> torch.Tensor:
        results.append(device.issue(torch.empty(1), lambda: torch.ones(1), "kernel"))
        return results.pop()  # held by the step alone

    trace_call("fused", call, tmp_path, device="hpu", schedule=Schedule(warmup=1, active=2), stacks=False)
    wait = [*(["mark_step"] if lazy else []), "synchronize"]
    assert device.log == [*wait, "kernel", *wait] * 3
    assert device.clock > 0.0  # a result that nobody held would not have been computed


def test_a_gaudi_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gaudi(lazy=True))
    monkeypatch.setenv("HABANA_PROFILE", "")
    monkeypatch.delenv("HABANA_PROFILE")  # to be removed again at the end
    assert choose_trace_device(None) == "hpu"
    assert os.environ["HABANA_PROFILE"] == "profile_api"


def test_devices_that_are_not_here_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sample.hide_gpu(monkeypatch)
    assert choose_trace_device(None) == "cpu"
    with pytest.raises(UnknownNameError, match=r"device='tpu'.*cpu, cuda, hpu"):
        choose_trace_device("tpu")
    with pytest.raises(MissingDependencyError, match="GPU"):
        choose_trace_device("cuda")
    with pytest.raises(MissingDependencyError, match="habana"):
        choose_trace_device("hpu")


class Kind(Enum):
    CPU = 0
    CUDA = 1


@dataclass
class Event:
    """One of the profiler's averages."""

    key: str
    device_type: Kind
    count: int
    self_cpu_time_total: float = 0.0
    self_device_time_total: float = 0.0
    is_user_annotation: bool = False


def test_on_a_device_kernels_are_ranked_not_what_launched_them() -> None:
    table = [
        Event("aten::mm", Kind.CPU, 3, 900.0, 0.0),
        Event("gemm", Kind.CUDA, 3, 0.0, 300.0),
        Event("softmax", Kind.CUDA, 6, 0.0, 100.0),
        Event(f"{STEP} 1", Kind.CUDA, 1, 0.0, 5000.0, True),
        Event("ProfilerStep*", Kind.CUDA, 1, 0.0, 5000.0),
    ]
    operators, timed_on = top_operators(table, "cuda")
    assert [(each.name, each.calls, each.milliseconds, each.share) for each in operators] == [
        ("gemm", 3, 0.3, 0.75),
        ("softmax", 6, 0.1, 0.25),
    ]
    assert timed_on == "cuda"


def test_without_kernels_the_cpu_is_what_was_seen() -> None:
    operators, timed_on = top_operators([Event("aten::mm", Kind.CPU, 3, 900.0)], "cuda")
    assert [each.name for each in operators] == ["aten::mm"]
    assert timed_on == "cpu"


def test_inputs_are_moved_with_their_other_fields() -> None:
    before = DEFINITION.make_inputs(SHAPE, seed=0, device="cpu")
    after = move(before, "meta")
    assert {after.q.device.type, after.k.device.type, after.v.device.type} == {"meta"}
    assert (after.causal, after.scale) == (before.causal, before.scale)


def test_report_names_steps_files_and_the_viewer(tmp_path: Path) -> None:
    _, call = counted()
    traced = trace_call("a product", call, tmp_path, schedule=Schedule(active=1))
    steps, operators = trace_sheets(traced, SHAPE)
    assert tuple(steps.names[:4]) == ("step", "name", "parameters", "ms")
    assert [row[:3] for row in steps.rows] == [(n, "a product", str(SHAPE)) for n in range(2)]
    assert operators.notes == (f"wrote {tmp_path / 'a_product.json.gz'}",)
    assert json.loads(json.dumps(trace_data(traced, SHAPE)))["files"] == [str(tmp_path / "a_product.json.gz")]
    assert "https://ui.perfetto.dev" in viewer_lines(tmp_path, "cpu")[0]


@pytest.mark.gpu
def test_kernels_of_a_gpu_are_seen(tmp_path: Path) -> None:
    shape = AttentionShape(batch=2, heads=8, seq_q=256, head_dim=64)
    found = {each.name: each for each in trace_all(OPERATION, shape, ["sdpa flash"], tmp_path, device="cuda")}
    assert found["autotune"].timed_on == "cuda"
    assert any("flash_attention_forward" in operator.name for operator in found["autotune"].operators)
    assert all(each.files for each in found.values())
