"""What all suites share: their names, the machine that measures, and how contenders are judged."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from autotune import hardware
from autotune.comparison.suites import (
    SUITES,
    Column,
    CpuMachine,
    GpuMachine,
    Suite,
    Table,
    assignment,
    exercise,
    find_suite,
)
from autotune.comparison.suites.contenders import Contender, make_comparison, measure, served_notes
from autotune.comparison.suites.threads import torch_threads
from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.errors import BaselineUnavailableError, MissingDependencyError, UnknownNameError
from autotune.report.comparison import comparison_data
from autotune.shape import AttentionShape
from autotune.table import write_comparisons
from autotune.trial import Conditions, Policy, Timing
from tests.comparison.fake_machine import EXTRA_BYTES, HELD_BYTES, FakeMachine

MIB = 2**20


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_is_found_by_its_name(name: str) -> None:
    assert find_suite(name).name == name


def test_an_unknown_suite_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        UnknownNameError, match=r"suite='cudnn_paged' is unknown; allowed: exercise, .*, cudnn-paged, axes"
    ):
        find_suite("cudnn_paged")


def test_a_suite_hands_out_its_tables_as_they_come() -> None:
    seen: list[str] = []

    def tables(machine: Any) -> Any:
        yield Table("one", (Column("a"),), ((1,),), failures=("too far",))
        assert seen == ["one"]
        yield Table("two", (Column("a"),), ())

    result = Suite("s", "what", tables).run(FakeMachine(), lambda table: seen.append(table.title))
    assert [table.title for table in result.tables] == seen == ["one", "two"]
    assert (result.failures, result.device, result.policy) == (("too far",), "a machine", Policy("eager", "warm"))


def test_a_result_has_the_threads_that_its_times_were_taken_with() -> None:
    def tables(machine: Any) -> Any:
        yield Table("one", (Column("a"),), ((1,),))

    machine = CpuMachine()
    assert Suite("s", "what", tables).run(machine).threads == torch.get_num_threads()
    assert Suite("s", "what", tables, policy_on=lambda machine: None).run(machine).threads is None
    assert Suite("s", "what", tables, has_own_threads=True).run(machine).threads is None
    assert Suite("s", "what", tables).run(FakeMachine("cuda")).threads is None
    assert [name for name in SUITES if find_suite(name).has_own_threads] == ["axes"]


@pytest.mark.parametrize(("name", "first"), [("exercise", "attention, float32: 2, 2, 9, 8"), ("assignment", "S 9")])
def test_a_suite_tells_what_begins(name: str, first: str) -> None:
    steps: list[str] = []
    machine = FakeMachine(on_step=steps.append)
    if name == "exercise":
        list(exercise.measure_exercise(machine, ((2, 2, 9, 8),)))
    else:
        list(assignment.measure_assignment(machine, (9,)))
    assert steps[0] == first


def test_the_processor_counts_what_a_call_holds_beside_its_result() -> None:
    def call() -> torch.Tensor:
        held = torch.ones(MIB // 4)  # 1 MiB
        more = held + 1.0  # and another, while the first is there
        del held
        return more[:16].clone()

    beside_numbers = 16  # bytes that torch takes for the 1.0
    assert 0 <= CpuMachine().extra_bytes(call) - (2 * MIB - 16 * 4) <= beside_numbers


def test_the_processor_times_all_calls_and_every_step() -> None:
    ran: list[str] = []
    calls = {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}
    times = CpuMachine().time(calls, rounds=4)
    assert {name: timing.samples for name, timing in times.items()} == {"a": 4, "b": 4}
    ran.clear()
    assert len(CpuMachine().steps(calls["a"], warmups=1, active=3)) == 3
    assert ran == ["a"] * 4


def test_the_processor_names_the_operators_of_a_call() -> None:
    left = torch.ones(64, 32)
    (product,) = [each for each in CpuMachine().operators(lambda: left @ left.T) if each.name == "aten::mm"]
    assert (product.calls, product.bytes) == (1, 64 * 64 * 4)


@pytest.mark.parametrize("fails", [False, True])
def test_threads_are_put_back(fails: bool) -> None:
    before = torch.get_num_threads()
    try:
        with torch_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            if fails:
                raise KeyError
    except KeyError:
        pass
    with torch_threads(None):
        assert torch.get_num_threads() == before


def test_of_contenders_the_right_ones_are_timed_and_the_others_told_apart() -> None:
    def give(value: float) -> Callable[[], Callable[[], torch.Tensor]]:
        return lambda: lambda: torch.full((2,), value)

    def refuse(error: Exception) -> Callable[[], Callable[[], torch.Tensor]]:
        def prepare() -> Callable[[], torch.Tensor]:
            raise error

        return prepare

    def check(out: torch.Tensor) -> tuple[float, float]:
        error = abs(float(out[0]) - 1.0)
        if error > 0.5:
            raise BaselineUnavailableError(f"off by {error:g}")
        return error, 0.5

    found = measure(
        FakeMachine(),
        [
            Contender("missing", refuse(MissingDependencyError("pip install it")), check),
            Contender("right", give(1.25), check, verified_on_hardware=False),
            Contender("refused", refuse(BaselineUnavailableError("too wide")), check),
            Contender("wrong", give(3.0), check),
            Contender("broken", refuse(RuntimeError("no\nkernel")), check),
        ],
    )
    right = found.results["right"]
    assert (right.error, right.error_limit, right.extra_bytes) == (0.25, 0.5, EXTRA_BYTES + HELD_BYTES)
    assert right.timing is not None
    assert not right.verified_on_hardware
    assert list(found.calls) == ["right"]
    assert found.absent == ("not compared: missing: pip install it", "not compared: refused: too wide")
    assert found.failed == ("wrong: BaselineUnavailableError: off by 2", "broken: RuntimeError: no kernel")
    assert [name for name, result in found.results.items() if result.timing is None] == [
        name for name in found.results if name != "right"
    ]


def test_a_race_that_breaks_leaves_what_was_found_before_it() -> None:
    """Each could be timed alone; what broke the race of all is nobody's in particular."""

    class Machine(FakeMachine):
        def time(self, calls: Mapping[str, Callable[[], object]], *, rounds: int | None = None) -> dict[str, Timing]:
            if len(calls) > 1:
                raise RuntimeError("out of\nmemory")
            return super().time(calls, rounds=rounds)

    contenders = [Contender(name, lambda: lambda: torch.ones(2), lambda out: (0.25, 0.5)) for name in ("a", "b")]
    found = measure(Machine(), contenders)
    message = "the race broke: RuntimeError: out of memory"
    assert [(each.error, each.timing, each.message) for each in found.results.values()] == [(0.25, None, message)] * 2
    assert (found.failed, found.calls) == ((f"a: {message}", f"b: {message}"), {})


def test_the_processor_counts_what_a_contender_keeps() -> None:
    def prepare() -> Callable[[], torch.Tensor]:
        kept = torch.ones(MIB // 4)  # 1 MiB
        return lambda: kept[:16] + 1.0

    call, held = CpuMachine().hold(prepare)
    assert held == MIB
    assert MIB <= CpuMachine().extra_bytes(call, prepared=held) < MIB + 4096


def test_a_race_is_kept_with_the_gpu_its_state_and_its_start(tmp_path: Path) -> None:
    """As ``bench`` of a shape keeps it; only the race of all is watched, not the trial runs before it."""
    conditions = Conditions(1980, 3201, 41, "power", contended=True)
    machine = FakeMachine("cuda", "NVIDIA H200", gpu=NVIDIA_H200, conditions=conditions)
    contenders = [
        Contender(name, lambda: lambda: torch.ones(2), lambda out: (0.0, 0.5)) for name in ("sdpa flash", "eager")
    ]
    before = datetime.now(UTC)
    found = measure(machine, contenders)
    shape = AttentionShape(batch=1, heads=2, seq_q=64, head_dim=16)
    comparison = make_comparison(machine, "flash_attention", shape, found)
    assert machine.watched == [["sdpa flash", "eager"]]
    assert (comparison.gpu, comparison.conditions) == (NVIDIA_H200, conditions)
    assert comparison.started_at is not None
    assert before <= comparison.started_at <= datetime.now(UTC)
    path = tmp_path / "table.parquet"
    write_comparisons(path, [comparison_data(comparison)])
    for row in pq.read_table(path).to_pylist():
        assert (row["device_name"], row["arch"], row["power_cap_watts"]) == ("NVIDIA H200", "sm_90", 700)
        assert (row["sm_clock_mhz"], row["temperature_c"], row["contended"]) == (1980, 41, True)
        assert row["started_at"] == comparison.started_at


def test_a_race_on_a_processor_is_kept_with_its_start_alone() -> None:
    contenders = [Contender("eager", lambda: lambda: torch.ones(2), lambda out: (0.0, 0.5))]
    machine = CpuMachine()
    found = measure(machine, contenders)
    shape = AttentionShape(batch=1, heads=2, seq_q=64, head_dim=16)
    comparison = make_comparison(machine, "flash_attention", shape, found)
    assert (comparison.gpu, comparison.conditions) == (None, None)
    assert comparison.started_at is not None
    assert comparison.started_at.tzinfo is UTC


def test_the_gpu_is_watched_for_all_processes_but_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watch:
        def __init__(self, own_pid: int | None) -> None:
            self.own_pid = own_pid

        def end(self) -> Conditions:
            return Conditions(sm_clock_mhz=self.own_pid)

    monkeypatch.setattr(hardware, "Watch", Watch)
    monkeypatch.setattr(hardware, "open_context", lambda: 4711)
    monkeypatch.setattr(hardware, "current_device", lambda: NVIDIA_H200)
    assert GpuMachine().watch()() == Conditions(sm_clock_mhz=4711)
    assert (GpuMachine().gpu, GpuMachine().name) == (NVIDIA_H200, "NVIDIA H200")


def test_what_was_served_is_told_and_equal_ones_together() -> None:
    tuned = AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
    untuned = [AttentionShape(batch=1, heads=1, seq_q=seq, head_dim=64, dtype="float16") for seq in (40, 50)]
    first, second, third = (get_kernel(shape, device="NVIDIA H200") for shape in (tuned, *untuned))
    assert [kernel.provenance.rung for kernel in (first, second, third)] == ["exact", "default", "default"]
    assert served_notes({"": None}) == ()
    assert served_notes({"": first}) == (f"served: {first.config} (tuned for this shape on NVIDIA H200)",)
    count, one, others = served_notes({"a": first, "b": second, "c": third, "d": None})
    assert count == "2 of 3 served configs are the untuned default"
    assert one == f"served at a: {first.config} (tuned for this shape on NVIDIA H200)"
    assert others == f"served at b; c: {second.config} (untuned default)"
