"""A plan counts what a search would prune, know and try, and estimates its time from what was recorded."""

import doctest
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import autotune.search.plan
from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.errors import InvalidShapeError
from autotune.executor.replay import ReplayExecutor
from autotune.executor.select import ExecutorInfo
from autotune.search import Limits, search
from autotune.search.pace import ASSUMED_COMPILE_SECONDS
from autotune.search.plan import SearchPlan, group_reasons, make_plan
from autotune.search.proposals import AHEAD
from autotune.search_spaces.flash_attention.operation import OPERATION
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.search_spaces.paged_decode.operation import OPERATION as DECODE
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION as DECODE_TRITON
from autotune.shape import AttentionShape, PagedShape
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Policy, Stage, Status, Trial
from tests import sample

HERE = ExecutorInfo("gpu", NVIDIA_H200, platforms.toolchain(), Policy())


@pytest.fixture(autouse=True)
def _nothing_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")


def plan(folder: Path, shape: AttentionShape | None = None, **changes: Any) -> SearchPlan:
    given = {"limits": Limits(trials=20, seconds=60.0), "sampler": "tpe", "jobs": 2, **changes}
    executor = given.pop("executor", HERE)
    return make_plan(OPERATION, IMPLEMENTATION, shape or sample.shape(64), executor, Store(folder), **given)


def timed(shape: AttentionShape, compile_seconds: float, judge_seconds: float) -> list[Trial]:
    """A sweep whose configs took that long."""
    return [
        replace(t, outcome=replace(t.outcome, compile_seconds=compile_seconds, judge_seconds=judge_seconds))
        for t in sample.sweep(shape)
    ]


def test_every_config_is_either_valid_or_pruned_for_one_reason(tmp_path: Path) -> None:
    found = plan(tmp_path)
    assert found.size == IMPLEMENTATION.space.size(NVIDIA_H200)
    assert found.valid == len(list(IMPLEMENTATION.space.configs(sample.shape(64), NVIDIA_H200)))
    assert sum(group.count for group in found.pruned) == found.size - found.valid
    assert [group.count for group in found.pruned] == sorted((g.count for g in found.pruned), reverse=True)
    for group in found.pruned:
        assert IMPLEMENTATION.space.reject(group.example, sample.shape(64), NVIDIA_H200) == group.reason
    assert found.default == IMPLEMENTATION.space.default(sample.shape(64), NVIDIA_H200)
    assert not list(tmp_path.iterdir())


def test_reasons_that_differ_in_numbers_alone_are_one_rule() -> None:
    configs = [Config(a=value) for value in range(5)]
    reasons = ["a=1 of sm_90 is 0.5 too much", "fp32 at 7", "a=2 of sm_90 is 17 too much", "fp32 at 8", "fp32 at 9"]
    first, second = group_reasons(zip(configs, reasons, strict=True))
    assert (first.rule, first.count, first.example, first.reason) == ("fp32 at N", 3, configs[1], "fp32 at 7")
    assert (second.rule, second.count) == ("a=N of sm_90 is N too much", 2)


def test_what_an_earlier_run_found_is_known_and_not_tried_again(tmp_path: Path) -> None:
    executor = ReplayExecutor(NVIDIA_H200, sample.sweep(sample.shape(64)))
    search(OPERATION, sample.shape(64), executor, Store(tmp_path), limits=Limits(trials=7))
    executor.open(OPERATION, sample.shape(64))
    found = plan(tmp_path, executor=executor)
    assert (found.executor, found.known, found.trials) == ("replay", 7, 13)
    assert plan(tmp_path).known == 0  # the GPU's own rows are others
    assert plan(tmp_path, executor=executor, limits=Limits(trials=5)).trials == 0
    assert plan(tmp_path, executor=executor, limits=Limits(trials=5)).seconds == 0.0
    assert plan(tmp_path, executor=executor, limits=Limits()).trials == found.valid - 7


def test_what_did_not_reach_the_device_is_known_but_spends_no_trials(tmp_path: Path) -> None:
    sweep = [
        replace(t, outcome=replace(t.outcome, status=Status.COMPILE_ERROR, timing=None))
        if t.outcome.config["num_stages"] == 3
        else t
        for t in sample.sweep(sample.shape(64))
    ]
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    search(OPERATION, sample.shape(64), executor, Store(tmp_path), limits=Limits(trials=7))
    executor.open(OPERATION, sample.shape(64))
    found = plan(tmp_path, executor=executor)
    assert found.known > 7
    assert found.trials == 13
    assert plan(tmp_path, executor=executor, limits=Limits(trials=1000)).trials == found.valid - found.known


def test_to_a_sweep_what_was_stopped_early_is_not_known(tmp_path: Path) -> None:
    sweep = [
        replace(t, outcome=replace(t.outcome, status=Status.SLOW)) if t.stage is Stage.SCREEN else t
        for t in sample.sweep(sample.shape(64))
    ]
    executor = ReplayExecutor(NVIDIA_H200, sweep)
    search(OPERATION, sample.shape(64), executor, Store(tmp_path), limits=Limits(trials=7))
    executor.open(OPERATION, sample.shape(64))
    assert plan(tmp_path, executor=executor).known == 7
    assert plan(tmp_path, executor=executor, sampler="exhaustive").known == 0


@pytest.mark.parametrize(("sampler", "jobs"), [("gp", AHEAD), ("exhaustive", 63)])
def test_compilers_that_a_sampler_keeps_idle_are_not_counted(tmp_path: Path, sampler: str, jobs: int) -> None:
    found = plan(tmp_path, sampler=sampler, jobs=63)
    assert found.jobs == jobs
    assert found.seconds == pytest.approx(20 * ASSUMED_COMPILE_SECONDS / jobs + 12.0)


def test_a_shape_that_the_implementation_does_not_support_is_refused(tmp_path: Path) -> None:
    shape = PagedShape(batch=1, heads=8, max_context=512, head_dim=128, seq_q=9)
    limits: Any = {"limits": Limits(), "sampler": "gp", "jobs": 1}
    with pytest.raises(InvalidShapeError, match="seq_q=9"):
        make_plan(DECODE, DECODE_TRITON, shape, HERE, Store(tmp_path), **limits)


@pytest.mark.parametrize(
    ("compile_seconds", "judge_seconds", "expected"),
    [(3.0, 0.1, 20 * 3.0 / 2 + 12.0), (0.2, 2.0, 20 * 2.0 + 12.0)],
    ids=["compilers decide", "the GPU decides"],
)
def test_the_time_is_that_of_the_slower_stage_and_the_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compile_seconds: float, judge_seconds: float, expected: float
) -> None:
    rows = timed(sample.shape(64), compile_seconds, judge_seconds)
    sweep = SimpleNamespace(name="near", device=rows[0].device.slug, trials=lambda: rows)
    monkeypatch.setattr(autotune.search.plan, "shipped_sweeps", lambda operation, implementation: [sweep])
    found = plan(tmp_path)
    assert found.pace.source == "near"
    assert found.pace[:2] == pytest.approx((compile_seconds, judge_seconds))
    assert found.seconds == pytest.approx(expected)
    assert found.budget == 60.0


def test_docstring_examples() -> None:
    assert doctest.testmod(autotune.search.plan, extraglobs={"Config": Config}).failed == 0
