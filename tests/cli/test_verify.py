"""``verify`` by replay of a synthetic sweep: which shapes it measures, and what it prints of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune import platforms
from autotune.cli import verified
from autotune.cli.verified import VerifyRequest, _expected_text, choose
from autotune.console.shape_options import ShapeOptions
from autotune.console.winners import candidate_data
from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.executor import head_start
from autotune.executor.head_start import HeadStart
from autotune.executor.select import ExecutorInfo, Settings
from autotune.models import get_model
from autotune.registry import get_operation
from autotune.shape import AttentionShape, PagedShape
from autotune.table import ServedRegret, record_miss
from autotune.trial import Candidate, Policy
from autotune.tuning import Tuning, Verification, verification
from tests import sample
from tests.cli.conftest import Machine, Ran
from tests.executor.test_head_start import FakeChildren

Run = Callable[..., Ran]

HERE = ExecutorInfo("gpu", NVIDIA_H200, sample.TOOLCHAIN, Policy())


def request(count: int = 4, seed: int = 0, **options: Any) -> VerifyRequest:
    return VerifyRequest(
        shape=ShapeOptions(**options), count=count, trials=5, budget=5.0, seed=seed, settings=Settings()
    )


def test_json_has_what_was_served_and_its_regret(run: Run, machine: Machine, confirmed: list[list[Candidate]]) -> None:
    machine.ship_sweep(64)
    ran = run("verify", "--seq", "64", "--trials", "5", "--json")
    assert ran.code == 0
    (found,) = json.loads(ran.out)
    assert (found["rung"], found["failure"], found["expected_regret"]) == ("default", "", None)
    assert found["regret"] == pytest.approx(found["served_timing"]["median_us"] / found["best_us"] - 1.0)
    assert found["winner"]["timing"]["median_us"] == found["best_us"]
    assert found["shape"] == found["asked"] == sample.shape(64).as_dict()
    assert found["served"]["implementation"] == "triton"
    assert "regret    median 4.8 %" in ran.err
    assert "expected  known for 0 of 1 shape\n" in ran.err
    raced = [row for row in machine.kept() if row.race_id]
    assert {row.served_rung for row in raced} == {"default"}
    assert [candidate_data(row.candidate) for row in raced if row.is_served] == [found["served"]]
    assert get_kernel(sample.shape(64), device="NVIDIA H200").provenance.rung == "exact"


def measured(expected: float | None, regret: float | None, rung: str = "nearest") -> ServedRegret:
    timing = None if regret is None else sample.timing(100.0 * (1.0 + regret))
    return ServedRegret(
        winner=sample.trial(), served=None, rung=rung, timing=timing, best_us=100.0, expected=expected, evidence=3
    )


def test_what_was_expected_is_compared_where_no_row_of_the_very_shape_was_served() -> None:
    exact, failed = measured(0.01, 0.0, "exact"), measured(0.02, None)
    found = [measured(0.01, 0.02), measured(0.01, 0.5), measured(None, 0.1), exact, failed]
    assert _expected_text(found) == "known for 2 of 3 shapes, within 3 points for 1"
    assert _expected_text([exact, failed]) == "not compared: every shape was served its own row"


def test_the_children_of_a_gpu_are_started_first_and_the_budget_runs_from_then(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    children, passed = FakeChildren(), []

    def note(shapes: object, **options: Any) -> Verification:
        assert not children.is_closed
        passed.append(options["begun"])
        return Verification(())

    monkeypatch.setattr(platforms, "has_driver", lambda: True)
    monkeypatch.setattr(head_start, "start_children", lambda settings: children)
    monkeypatch.setattr(head_start, "process_started", lambda: 7.0)
    machine.ship_sweep(64)
    monkeypatch.setattr(verified, "verify", note)
    assert run("verify", "--seq", "64").code == 0
    assert passed == [HeadStart(7.0, children)]  # type: ignore[arg-type]
    assert children.is_closed


def test_what_was_begun_reaches_the_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, passed = HeadStart(7.0), []

    def note(shapes: object, **options: Any) -> Tuning:
        passed.append(options["begun"])
        return Tuning(())

    monkeypatch.setattr(verification, "tune", note)
    verification.verify([], begun=begun)
    assert passed == [begun]


def test_a_shape_without_a_regret_is_told_and_fails(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    machine.ship_sweep(64)
    ran = run("verify", "--seq", "64", "--head-dim", "128", "--dtype", "bf16", "--trials", "5", "--batch", "256")
    assert ran.code == 0
    ran = run("verify", "--operation", "flash_attention", "--model", "phi-3-mini-4k", "--seq", "64,128")
    assert ran.code == 1
    assert "2 of 2 shapes have no regret: see the lines `failed`" in ran.err
    assert ran.out.count("failed    batch ") == 2


def test_a_described_shape_that_is_not_recorded_is_not_judged_by_another(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    ran = run("verify", "--seq", "64", "--batch", "200", "--trials", "5", "--json")
    assert (ran.code, ran.out) == (1, "")
    assert "no sweep of batch 200, 16 heads of 128, seq 64, bfloat16, causal is recorded" in ran.err
    assert not machine.kept()


def test_of_drawn_shapes_the_recorded_ones_near_them_are_judged_and_said_to_be(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    machine.ship_sweep(64)
    ran = run("verify", "--model", "llama-3.1-8b", "--operation", "flash_attention", "--trials", "5", "--json")
    assert ran.code == 0
    (found,) = json.loads(ran.out)
    assert found["asked"] == found["shape"] == sample.shape(64).as_dict()
    told = "1 recorded shape near shapes of llama-3.1-8b, drawn by seed 0, which themselves are judged on a GPU alone"
    assert ran.err.startswith(f"{told}\n")
    assert "not of the shape asked for" not in ran.err


def test_without_options_the_missed_shapes_are_measured(machine: Machine) -> None:
    shapes = [sample.shape(seq) for seq in (64, 128, 256)]
    for shape in shapes:
        record_miss(get_operation("flash_attention"), shape)
    wanted = choose(request(), HERE)
    assert [shape for _, shape in wanted.problems] == shapes
    assert wanted.notes == ("3 missed shapes",)
    two = choose(request(2, seed=1), HERE)
    assert len(two.problems) == 2
    assert two.problems == choose(request(2, seed=1), HERE).problems
    assert two.notes == ("2 of 3 missed shapes, drawn by seed 1",)


def test_without_misses_shapes_of_the_named_models_are_drawn_of_both_phases() -> None:
    wanted = choose(request(5), HERE)
    kinds = [type(shape) for _, shape in wanted.problems]
    assert kinds == [AttentionShape] * 3 + [PagedShape] * 2
    assert wanted.notes == ("5 shapes of the named models, drawn by seed 0",)
    assert choose(request(5, seed=1), HERE).problems != wanted.problems
    small = HERE._replace(device=replace(NVIDIA_H200, memory_mib=8192))
    for operation, shape in choose(request(5), small).problems:
        assert operation.cost(shape).bytes <= 8192 * 2**20 / 16


def test_a_model_without_sizes_is_drawn_with_its_heads_and_its_phases() -> None:
    wanted = choose(request(model="qwen2.5-7b", tp=2), HERE)
    model = get_model("qwen2.5-7b").tensor_parallel(2)
    assert {(s.as_dict()["heads"], s.as_dict()["kv_heads"]) for _, s in wanted.problems} == {(14, 2)}
    assert wanted.notes == (f"4 shapes of {model.name}, drawn by seed 0",)
    assert {of.name for of, _ in choose(request(model="bert-base"), HERE).problems} == {"flash_attention"}
    decode = choose(request(model="qwen2.5-7b", operation="paged_decode"), HERE)
    assert {of.name for of, _ in decode.problems} == {"paged_decode"}


def test_sizes_describe_the_shapes_as_they_do_for_a_search() -> None:
    wanted = choose(request(seq="512,1000"), HERE)
    assert [shape for _, shape in wanted.problems] == [sample.shape(512), sample.shape(1000)]
    prefill = choose(request(operation="paged_prefill"), HERE)  # of which no shapes are drawn
    assert [of.name for of, _ in prefill.problems] == ["paged_prefill"]
