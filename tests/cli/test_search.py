"""``search``, ``sweep`` and ``bench``: by replay of a synthetic sweep, and by a made-up GPU."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autotune.search
from autotune import platforms
from autotune.cli import studies
from autotune.correctness import Verdict
from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.errors import SearchError
from autotune.executor import BaselineResult, Baselines, Race
from autotune.executor.replay import ReplayExecutor
from autotune.executor.select import Settings
from autotune.search import DEFAULT_SAMPLER, SAMPLERS, Confirmation, SearchResult
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.space import Config
from autotune.table import shipped_sweeps
from autotune.trial import Candidate, Conditions, Outcome, Policy, Stage, Status
from autotune.tuning import tuner
from tests import sample
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]


def test_a_search_without_a_gpu_says_what_was_recorded_compiled_and_checked(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    machine.ship_sweep(1024)
    ran = run("search", "--trials", "15")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[:3] == [
        "no GPU here: times come from a sweep recorded on an NVIDIA H200; compiling and checking happen on this CPU",
        f"flash_attention: {sample.shape(1024)}",
        "362 valid configs",
    ]
    assert "15 configs tried in " in ran.out
    assert "recorded  times were not measured here but recorded on an NVIDIA H200 with triton 3.6.0\n" in ran.out
    assert "compiled  BLOCK_Q=128 " in ran.out
    assert "ok for sm_90 here: 128 registers, 0 bytes spilled, 65536 of 232448 bytes of shared memory\n" in ran.out
    assert "checked   numbers ok in Triton's interpreter, float16, on reduced lengths (largest error 0.001" in ran.out
    assert list(dict.fromkeys(line.split()[0] for line in lines if line))[-6:] == [
        *("verdict", "recorded", "compiling", "compiled", "checked", "saved"),
    ]
    assert f"saved     {machine.home / 'nvidia_h200' / 'flash_attention'}" in ran.out
    assert len(confirmed) == 1


def test_a_search_saves_what_is_then_served_and_shown(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    machine.ship_sweep(1024)
    (found,) = json.loads(run("search", "--trials", "40", "--json").out)
    rows = machine.kept()
    assert {row.executor for row in rows} == {"replay"}
    assert sum(row.stage is Stage.SCREEN for row in rows) == 40
    (shown,) = json.loads(run("show", "--json").out)
    assert shown == found["winner"]
    kernel = get_kernel(sample.shape(1024), device="NVIDIA H200")
    assert (kernel.provenance.rung, kernel.provenance.origin) == ("exact", "user")
    assert {name: value for name, value in kernel.config.items() if value is not None} == shown["config"]


def test_a_second_run_resumes_and_measures_nothing(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    machine.ship_sweep(1024)
    first = run("search", "--trials", "12")
    kept = machine.kept()
    second = run("search", "--trials", "12")
    assert "362 valid configs, 12 known from an earlier run; best 2" in second.out
    assert "0 configs tried and 12 known in " in second.out
    assert machine.kept() == kept
    assert [line for line in second.out.splitlines() if line.startswith("winner")] == [
        line for line in first.out.splitlines() if line.startswith("winner")
    ]
    third = run("search", "--trials", "14")
    assert "2 configs tried and 12 known in " in third.out


def test_a_search_that_tried_only_the_default_does_not_say_that_tuning_gains_nothing(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    machine.ship_sweep(1024)
    ran = run("search", "--trials", "1", "--sampler", "random")
    assert "\nracing 1 finalist against the fastest baseline\n1 config tried in " in ran.out
    (line,) = [line for line in ran.out.splitlines() if line.startswith("verdict")]
    assert line.startswith("verdict   nothing faster than the space's default among the 1 of 362 configs tried; ")
    assert line.endswith("; raise --trials to try more")
    (found,) = json.loads(run("search", "--trials", "1", "--sampler", "random", "--json").out)
    assert f"verdict   {found['verdict']}" == line


def test_a_budget_that_the_race_takes_whole_is_refused_with_what_it_needs(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    ran = run("search", "--seq", "64", "--budget", "2")
    assert ran.code == 1
    assert ran.err == (
        "autotune: the budget of 2 s ended before one config was measured, as 2 s of it are kept for the race; "
        "give it at least 6 s\n"
    )


def test_a_replay_that_raced_others_than_its_recording_says_why_there_is_no_baseline(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    machine.ship_sweep(1024)
    ran = run("search", "--trials", "6", "--sampler", "random")  # the recorded race had the sweep's fastest
    (line,) = [line for line in ran.out.splitlines() if line.startswith("baseline")]
    assert line.startswith("baseline  not known: the recording raced other finalists")


def test_a_search_as_json_says_the_same(run: Run, machine: Machine, confirmed: list[list[Candidate]]) -> None:
    machine.ship_sweep(64)
    machine.ship_sweep(128)
    ran = run("search", "--seq", "64,128", "--trials", "5", "--json")
    assert "recorded  times were not measured here" in ran.err
    data = json.loads(ran.out)
    assert [result["shape"]["seq_q"] for result in data] == [64, 128]
    for result in data:
        assert (result["resumed"], result["statuses"]["ok"]) == (0, 5)
        assert result["measured"] == sum(result["statuses"].values())
        assert result["winner"]["executor"] == "replay"
        confirmation = result["confirmation"]
        assert {(entry["status"], entry["message"]) for entry in confirmation.pop("compiled")} == {("ok", "")}
        assert confirmation == {
            "holds": True,
            "unchecked": None,
            "interpreter_status": "ok",
            "interpreter_dtype": "float16",
        }


def test_a_length_that_was_not_recorded_is_answered_by_the_nearest_and_said(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    machine.ship_sweep(1024)
    machine.ship_sweep(64)
    out = run("search", "--seq", "1500", "--trials", "5").out
    away = "1.03 away in powers of two (beyond 1 a winner is not served for your shape), tuning that\n"
    assert f"not recorded: {sample.shape(1500)}; the nearest sweep is {away}" in out
    assert f"flash_attention: {sample.shape(1024)}\n" in out
    (verdict,) = [line for line in out.splitlines() if line.startswith("verdict")]
    assert verdict.startswith(f"verdict   of {sample.shape(1024)}, not of the shape asked for: ")
    assert {row.shape for row in machine.kept()} == {sample.shape(1024)}  # no time of one shape stands under another
    own = run("search", "--seq", "64", "--trials", "5").out
    assert "not recorded" not in own
    assert "not of the shape" not in own
    both = json.loads(run("search", "--seq", "1500,64,1024", "--trials", "5", "--json").out)
    assert ["not of the shape" in found["verdict"] for found in both] == [False, False]
    (other,) = json.loads(run("search", "--seq", "1500", "--trials", "5", "--json").out)
    assert other["verdict"].startswith(f"of {sample.shape(1024)}, not of the shape asked for: ")


@pytest.mark.parametrize("lengths", ["64,96", "96,64"])
def test_lengths_that_one_sweep_answers_are_tuned_once_and_said(
    run: Run, machine: Machine, confirmed: list[list[Candidate]], lengths: str
) -> None:
    machine.ship_sweep(64)
    ran = run("search", "--seq", lengths, "--trials", "5", "--json")
    assert [result["shape"]["seq_q"] for result in json.loads(ran.out)] == [64]
    assert len(confirmed) == 1
    assert ran.err.count("no GPU here") == 1
    (said,) = [line for line in ran.err.splitlines() if line.startswith("not recorded")]
    assert said.endswith("tuned above already" if lengths == "64,96" else "tuning that")


def test_a_family_without_a_sweep_fails_and_lists_the_recorded(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    ran = run("search", "--seq", "64", "--no-causal")
    assert ran.code == 1
    assert ran.err.startswith(
        "autotune: no recorded sweep resembles batch 256, 16 heads of 128, seq 64, bfloat16, full"
    )
    assert f"recorded on NVIDIA H200: {sample.shape(64)}." in ran.err
    assert ran.err.count("\n") == 1
    assert not machine.home.exists()


def test_nothing_recorded_at_all_is_said(run: Run, machine: Machine) -> None:
    ran = run("search")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "autotune: no GPU is visible, and no sweep of an NVIDIA H200 is recorded to replay instead\n"
    named = run("search", "--device", "NVIDIA H200")
    assert (named.code, named.out) == (2, "")
    assert named.err == "autotune: --device='NVIDIA H200' is neither here nor recorded; recorded: none\n"


def test_out_names_another_folder(run: Run, machine: Machine, tmp_path: Path, confirmed: list[list[Candidate]]) -> None:
    machine.ship_sweep(64)
    out = tmp_path / "some" / "where"
    assert run("search", "--seq", "64", "--trials", "3", "--tables", out).code == 0
    assert not machine.home.exists()
    assert len(json.loads(run("show", "--tables", out, "--json").out)) == 1


@pytest.mark.slow
def test_each_length_begins_with_the_winners_of_the_ones_before(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    machine.ship_sweep(1024)
    machine.ship_sweep(2048)
    first, second = json.loads(run("search", "--seq", "1024,2048", "--trials", "40", "--json").out)
    default, winner = sorted((t for t in machine.kept() if t.shape.seq_q == 2048), key=lambda t: t.number)[:2]  # type: ignore[attr-defined]
    assert default.is_default
    assert winner.config == Config({**winner.config, **first["winner"]["config"]})
    assert second["winner"]["config"] == first["winner"]["config"]


def test_a_first_length_that_fails_leaves_the_others_their_budget(
    run: Run, machine: Machine, confirmed: list[list[Candidate]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seq in (64, 128, 256):
        machine.ship_sweep(seq)
    search, failed_at = autotune.search.search, 0.0
    started: list[float] = []

    def fail_first(*arguments: Any, **options: Any) -> SearchResult:
        nonlocal failed_at
        started.append(options["started"])
        if len(started) == 1:
            failed_at = time.monotonic()
            raise SearchError("no config is valid")
        return search(*arguments, **options)

    monkeypatch.setattr(tuner, "search", fail_first)
    ran = run("search", "--seq", "64,128,256", "--trials", "3", "--json")
    assert started[0] <= failed_at <= started[1] < started[2]  # the budget of each runs from its own start
    assert (ran.code, ran.err.count("failed    ")) == (1, 1)
    assert "1 of 3 shapes failed" in ran.err
    assert [(found["shape"]["seq_q"], found["measured"]) for found in json.loads(ran.out)] == [(128, 3), (256, 3)]


def test_missed_shapes_are_tuned(run: Run, machine: Machine, confirmed: list[list[Candidate]]) -> None:
    machine.ship_sweep(64)
    machine.ship_sweep(32)
    assert run("search", "--from-misses") == (
        0,
        "nothing to tune: no shape was noted by get_kernel(shape, on_miss='record')\n",
        "",
    )
    assert json.loads(run("search", "--from-misses", "--json").out) == []
    for seq in (64, 32):
        get_kernel(sample.shape(seq), device="NVIDIA H200", on_miss="record")
    data = json.loads(run("search", "--from-misses", "--trials", "3", "--json").out)
    assert [result["shape"]["seq_q"] for result in data] == [64, 32]
    assert get_kernel(sample.shape(32), device="NVIDIA H200").provenance.rung == "exact"


def test_a_winner_that_fails_here_is_said(run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def confirm(
        operation: object,
        shape: object,
        device: object,
        finalists: list[Candidate],
        winner: Candidate,
        settings: Settings,
    ) -> Any:
        compiled = (Outcome(candidate=winner, status=Status.COMPILE_ERROR, message="no [/such] register"),)
        return Confirmation(compiled, Verdict(Status.WRONG_RESULT, "off by 3"), "float16")

    monkeypatch.setattr(tuner, "confirm", confirm)
    machine.ship_sweep(64)
    ran = run("search", "--seq", "64", "--trials", "3")
    assert ran.code == 1
    assert "a winner does not hold on this machine" in ran.err
    assert "compile_error for sm_90: no [/such] register\n" in ran.out
    assert "checked   numbers wrong_result in Triton's interpreter, float16, on reduced lengths: off by 3\n" in ran.out
    (found,) = json.loads(run("search", "--seq", "64", "--trials", "3", "--json").out)
    assert found["confirmation"]["holds"] is False


@pytest.mark.slow
def test_a_winner_is_really_compiled_and_checked(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    (found,) = json.loads(run("search", "--seq", "64", "--heads", "2", "--trials", "2", "--json").out)
    confirmation = found["confirmation"]
    assert confirmation["holds"] is True
    assert [entry["status"] for entry in confirmation["compiled"]] == ["ok"]
    assert (confirmation["interpreter_status"], confirmation["interpreter_dtype"]) == ("ok", "float16")


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
        monkeypatch.setattr(f"autotune.{opener}", lambda settings: executor)
    monkeypatch.setattr(tuner, "open_executor", lambda device, settings: executor)


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
    module, name, place = (tuner, "search", 1) if failing == "search" else (tuner, "ship_sweep", 0)
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

    def note(task: studies.SearchRequest) -> list[Any]:
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


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_searches_by_replay(
    run: Run, machine: Machine, confirmed: list[list[Candidate]], sampler: str
) -> None:
    machine.ship_sweep(64)
    (found,) = json.loads(run("search", "--seq", "64", "--sampler", sampler, "--trials", "12", "--json").out)
    assert (found["measured"], found["winner"]["executor"]) == (12, "replay")


def test_a_replay_refuses_another_policy_than_that_of_its_recording(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    ran = run("search", "--seq", "64", "--cache", "warm")
    assert (ran.code, ran.out) == (2, "")
    assert "policy='graph', cache='warm' was not recorded on NVIDIA H200" in ran.err
    assert not machine.home.exists()
