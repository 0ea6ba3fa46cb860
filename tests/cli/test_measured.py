"""``search``, ``sweep`` and ``bench`` on a GPU, whose times are replayed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import platforms
from autotune.cli import studies
from autotune.device import NVIDIA_H200
from autotune.errors import SearchError
from autotune.executor import BaselineResult, Baselines, Race
from autotune.executor.head_start import HeadStart
from autotune.executor.replay import ReplayExecutor
from autotune.executor.select import Settings
from autotune.search import DEFAULT_SAMPLER
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.table import shipped_sweeps
from autotune.trial import Candidate, Conditions, Outcome, Policy, Status
from autotune.tuning import shape_searches, tuner
from tests import sample
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]


class FakeGPU(ReplayExecutor):
    """A GPU that knows its answers: those of a sweep, and two SDPA backends."""

    name = "gpu"

    def race(self, configs: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        race = super().race(configs, seconds=seconds)
        refused = BaselineResult("sdpa cudnn", message="no [/kernel] found")
        return Race(race.outcomes, (BaselineResult("sdpa flash", sample.timing(400)), refused))


def open_gpu(monkeypatch: pytest.MonkeyPatch, *lengths: int) -> None:
    """A machine with an H200 that answers like the sweeps at these lengths."""
    executor = FakeGPU(NVIDIA_H200, [row for seq in lengths for row in sample.sweep(sample.shape(seq))])
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    for opener in ("tuning.tuner.open_gpu", "lab.bench.each_shape.open_gpu"):
        monkeypatch.setattr(f"autotune.{opener}", lambda *_: executor)
    monkeypatch.setattr(tuner, "open_executor", lambda *_: executor)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    open_gpu(monkeypatch, 64)


@pytest.mark.usefixtures("gpu")
def test_bench_sets_the_served_kernel_beside_the_default_and_torch(run: Run, machine: Machine) -> None:
    served = sample.config(BLOCK_Q=64, BLOCK_K=64, num_warps=4)
    machine.ship(sample.trial(sample.shape(64), served))
    ran = run("bench", "--seq", "64")
    assert (ran.code, ran.err) == (0, "")
    problem, _, *rows = ran.out.splitlines()
    assert problem == f"{sample.shape(64)} on NVIDIA H200"
    assert rows.pop(3) == f"served: triton {served} (tuned for this shape on NVIDIA H200)"
    assert [row.split("  ")[0] for row in rows] == ["autotune", "autotune default", "sdpa flash", *rows[3:]]
    assert "its speed" not in rows[0]
    assert "us (" in rows[1]
    assert " its speed" in rows[2]
    assert rows[3] == "not compared: sdpa cudnn: no [/kernel] found"
    assert rows[4] == "not compared: sdpa efficient: the race was lost before its turn"  # asked for, and not told
    (data,) = json.loads(run("bench", "--seq", "64", "--json").out)
    assert data["config"]["BLOCK_Q"] == 64
    ours, default, flash, cudnn, *_ = data["rows"]
    assert ours["config"] == data["config"] == dict(served)
    assert default["config"] == dict(IMPLEMENTATION.space.default(sample.shape(64), NVIDIA_H200)) != dict(served)
    assert flash["config"] is None
    assert flash["ratio"]["value"] == pytest.approx(400 / ours["timing"]["median_us"])
    assert (cudnn["timing"], cudnn["tflops"], cudnn["ratio"]) == (None, None, None)


@pytest.mark.usefixtures("gpu")
def test_bench_fails_where_the_served_kernel_does(run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    default = IMPLEMENTATION.space.default(sample.shape(64), NVIDIA_H200)
    broken = Outcome(candidate=sample.candidate(default), status=Status.HANG, message="10 s")
    monkeypatch.setattr(FakeGPU, "race", lambda self, configs, **options: Race((broken,)))
    ran = run("bench", "--seq", "64")
    failure = f"{sample.shape(64)}: triton {default} is hang: 10 s"
    assert ran.code == 1
    assert "not compared: autotune: hang: 10 s" in ran.out.splitlines()
    assert ran.err.splitlines()[-1] == f"autotune: 1 of 1 shapes failed: {failure}"


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_a_sweep_tries_every_config_and_can_be_shipped(
    run: Run, machine: Machine, tmp_path: Path, confirmed: list[list[Candidate]]
) -> None:
    ran = run("sweep", "--seq", "64", "--results", tmp_path / "shipped", "--json")
    (data,) = json.loads(ran.out)
    space = list(IMPLEMENTATION.space.configs(sample.shape(64), NVIDIA_H200))
    assert data["measured"] == len(space)
    (sweep,) = shipped_sweeps("flash_attention", results=tmp_path / "shipped")
    assert (sweep.name, sweep.device) == ("triton_b256_h16_s64_d128_causal_bfloat16", "nvidia_h200")
    assert {trial.config for trial in sweep.trials()} == set(space)


@pytest.mark.parametrize("failing", ["search", "ship"])
@pytest.mark.slow
def test_a_sweep_that_fails_keeps_no_other_from_being_shipped(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: str
) -> None:
    open_gpu(monkeypatch, 64, 128)
    module, name, place = (shape_searches, "search", 1) if failing == "search" else (shape_searches, "ship_sweep", 0)
    original = getattr(module, name)

    def fail_first(*arguments: Any, **options: Any) -> Any:
        subject = arguments[place]
        if getattr(subject, "shape", subject) == sample.shape(64):
            raise SearchError("incomplete")
        return original(*arguments, **options)

    monkeypatch.setattr(module, name, fail_first)
    ran = run("sweep", "--seq", "64,128", "--results", tmp_path / "shipped")
    assert ran.code == 1
    assert "failed    incomplete\n" in ran.out
    assert "1 of 2 shapes failed" in ran.err
    (sweep,) = shipped_sweeps("flash_attention", results=tmp_path / "shipped")
    assert sweep.name == "triton_b128_h16_s128_d128_causal_bfloat16"


@pytest.mark.slow
def test_of_sweeps_that_were_interrupted_the_finished_are_shipped(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_gpu(monkeypatch, 64, 128)
    collect, configs = ReplayExecutor.collect, len(list(IMPLEMENTATION.space.configs(sample.shape(64), NVIDIA_H200)))
    answered: list[Outcome] = []

    def collect_until_stopped(executor: ReplayExecutor, timeout: float | None = None) -> Outcome:
        if len(answered) == configs + 5:
            raise KeyboardInterrupt
        answered.append(collect(executor, timeout))
        return answered[-1]

    monkeypatch.setattr(ReplayExecutor, "collect", collect_until_stopped)
    assert run("sweep", "--seq", "64,128", "--results", tmp_path / "shipped").code == 130
    (sweep,) = shipped_sweeps("flash_attention", results=tmp_path / "shipped")
    assert sweep.name == "triton_b256_h16_s64_d128_causal_bfloat16"


@pytest.mark.usefixtures("gpu")
def test_a_search_says_that_another_process_was_using_the_gpu(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "contended" not in run("search", "--seq", "64", "--trials", "5").out
    collect = ReplayExecutor.collect

    def contended(executor: ReplayExecutor, timeout: float | None = None) -> Outcome:
        return replace(collect(executor, timeout), conditions=Conditions(contended=True))

    monkeypatch.setattr(ReplayExecutor, "collect", contended)
    one = run("search", "--seq", "64", "--trials", "6", "--json")
    assert "using the GPU during 1 measurement; " in one.err
    ran = run("search", "--seq", "64", "--trials", "9", "--json")
    (line,) = [line for line in ran.err.splitlines() if line.startswith("contended")]
    assert line == (
        "contended another process was using the GPU during 3 measurements; "
        "rows are marked and a later uncontended race replaces them"
    )
    assert json.loads(ran.out)[0]["contended"] == 3


@pytest.mark.parametrize("command", ["search", "sweep"])
def test_options_of_measuring_reach_the_executor(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    asked: list[tuple[Settings, str]] = []

    def note(task: studies.SearchRequest, begun: HeadStart) -> list[Any]:
        asked.append((task.settings, task.sampler))
        return []

    monkeypatch.setattr(studies, "run", note)
    options = ["--policy", "eager", "--cache", "warm", "--jobs", "3", "--compile-timeout", "7", "--timeout", "8"]
    assert run(command, *options).code == 0
    is_search = command == "search"
    expected = Settings(
        policy=Policy("eager", "warm"), jobs=3, compile_seconds=7.0, screen_seconds=8.0, early_stop=is_search
    )
    assert asked == [(expected, DEFAULT_SAMPLER if is_search else "exhaustive")]
