"""``search`` by replay of a synthetic sweep."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import autotune.search
from autotune.correctness import Verdict
from autotune.dispatch import get_kernel
from autotune.errors import SearchError
from autotune.executor.select import Settings
from autotune.search import SAMPLERS, Confirmation, SearchResult
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Stage, Status
from autotune.tuning import shape_searches
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


def test_a_replay_says_the_time_that_is_then_looked_up(run: Run, machine: Machine, confirmed: list[Any]) -> None:
    machine.ship_sweep(1024)
    ran = run("search", "--trials", "15")
    assert "\nserved " not in ran.out  # the replay itself is
    winner = sample.trial(sample.shape(1024), timing=sample.timing(150.8), stage=Stage.RACE, race_id="r")
    machine.ship(winner)
    ran = run("search", "--trials", "15")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("served ")]
    time = line.split()[1]
    assert f"row     {time} us, measured " in run("lookup", "--seq", "1024", "--device", "NVIDIA H200").out
    assert time == "150.8"


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
        "autotune: the budget of 2 s cannot hold a search: 2 s are kept for its race; give it at least 3 s\n"
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

    monkeypatch.setattr(shape_searches, "search", fail_first)
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

    monkeypatch.setattr(shape_searches, "confirm", confirm)
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
