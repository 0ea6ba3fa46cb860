"""The systems of a race in this process: how each is judged and timed, and what is kept."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import torch

from autotune.device import NVIDIA_H200
from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.lab.bench.comparison import comparison_data
from autotune.lab.bench.entrants import Entrant, make_comparison, measure
from autotune.lab.bench.machines import BrokenCallError
from autotune.lab.suites import CpuMachine
from autotune.shape import AttentionShape
from autotune.table import write_comparisons
from autotune.trial import Conditions, Timing
from tests.lab.bench.fake_machine import EXTRA_BYTES, HELD_BYTES, FakeMachine


def test_of_entrants_the_right_ones_are_timed_and_the_others_told_apart() -> None:
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
            Entrant("missing", refuse(MissingDependencyError("pip install it")), check),
            Entrant("right", give(1.25), check, verified_on_hardware=False),
            Entrant("refused", refuse(BaselineUnavailableError("too wide")), check),
            Entrant("wrong", give(3.0), check),
            Entrant("broken", refuse(RuntimeError("no\nkernel")), check),
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


def test_one_that_breaks_in_the_race_costs_no_other_its_time() -> None:
    class Machine(FakeMachine):
        def time(self, calls: Mapping[str, Callable[[], object]], *, rounds: int | None = None) -> dict[str, Timing]:
            if "a" in calls:
                raise BrokenCallError("a", RuntimeError("out of\nmemory"))
            return super().time(calls, rounds=rounds)

    machine = Machine()
    entrants = [Entrant(name, lambda: lambda: torch.ones(2), lambda out: (0.25, 0.5)) for name in ("a", "b")]
    found = measure(machine, entrants)
    message = "RuntimeError: out of memory"
    assert [(each.error, each.timing is None, each.message) for each in found.results.values()] == [
        (0.25, True, message),
        (0.25, False, ""),
    ]
    assert (found.failed, list(found.calls), machine.watched) == ((f"a: {message}",), ["b"], [["b"]])


def test_a_race_is_kept_with_the_gpu_its_state_and_its_start(tmp_path: Path) -> None:
    """It is kept as ``bench`` of a shape keeps it; only the race of all is watched, not the trial runs before it."""
    conditions = Conditions(1980, 3201, 41, "power", contended=True)
    machine = FakeMachine(kind="cuda", name="NVIDIA H200", gpu=NVIDIA_H200, conditions=conditions)
    entrants = [
        Entrant(name, lambda: lambda: torch.ones(2), lambda out: (0.0, 0.5)) for name in ("sdpa flash", "eager")
    ]
    before = datetime.now(UTC)
    found = measure(machine, entrants)
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
    entrants = [Entrant("eager", lambda: lambda: torch.ones(2), lambda out: (0.0, 0.5))]
    machine = CpuMachine()
    found = measure(machine, entrants)
    shape = AttentionShape(batch=1, heads=2, seq_q=64, head_dim=16)
    comparison = make_comparison(machine, "flash_attention", shape, found)
    assert (comparison.gpu, comparison.conditions) == (None, None)
    assert comparison.started_at is not None
    assert comparison.started_at.tzinfo is UTC
