"""``show``, ``lookup``, ``export`` and ``doctor``; their printed text is pinned by golden files."""

import csv
import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.table import write_shipped
from autotune.tuning_command import tuning_command
from tests import sample
from tests.cli.conftest import Machine, Ran
from tests.cli.test_paged import sweep as paged_sweep

Run = Callable[..., Ran]


@pytest.fixture
def tuned(machine: Machine) -> Machine:
    """Three shipped winners, one of them tuned again by the user with another config."""
    machine.ship(*[sample.trial(sample.shape(seq)) for seq in (4096, 512, 1024)])
    machine.tune(sample.trial(sample.shape(1024), sample.config(BLOCK_K=64), timing=sample.timing(190)))
    return machine


def test_show_lists_each_winner_in_one_line(run: Run, tuned: Machine) -> None:
    title, header, *rows = run("show").out.splitlines()
    assert title == "NVIDIA H200, triton"
    assert header.split()[:2] == ["shape", "BLOCK_Q"]
    for row, seq, time in zip(rows, (512, 1024, 4096), ("200.0 us", "190.0 us", "200.0 us"), strict=True):
        assert row.startswith(f"{sample.shape(seq)}  ")
        assert time in row


def test_a_row_is_one_line_in_a_pipe_however_long(run: Run, machine: Machine) -> None:
    machine.ship(sample.trial(baseline="a system " + "of a long name " * 20))
    lines = run("show").out.splitlines()
    assert len(lines) == 3
    row = lines[-1]
    assert len(row) > 350
    assert row.rstrip().endswith("2026-11-21")


def test_show_sorts_shapes_that_differ_in_optional_fields(run: Run, machine: Machine) -> None:
    windows = (None, 256, 128)
    machine.ship(*[sample.trial(sample.shape(window=window)) for window in windows])
    data = json.loads(run("show", "--json").out)
    assert [trial["shape"]["window"] for trial in data] == [None, 128, 256]


def test_show_marks_what_was_replayed(run: Run, machine: Machine) -> None:
    machine.tune(sample.trial(executor="replay"))
    assert run("show").out.rstrip().endswith("2026-11-21, replay")


def test_show_keeps_devices_apart(run: Run, tuned: Machine) -> None:
    other = replace(NVIDIA_H200, name="NVIDIA B200", arch="sm_100")
    tuned.tune(sample.trial(device=other))
    lines = run("show").out.splitlines()
    assert [line for line in lines if line.startswith("NVIDIA")] == ["NVIDIA B200, triton", "NVIDIA H200, triton"]
    data = json.loads(run("show", "--device", "NVIDIA B200", "--json").out)
    assert [trial["device"]["name"] for trial in data] == ["NVIDIA B200"]


def test_without_winners_the_readers_say_what_finds_some_and_what_is_served(run: Run, machine: Machine) -> None:
    def hint(name: str, where: str) -> str:
        return (
            f"no winners of {name} yet: `autotune search --operation {name}`{where} finds some; "
            f"`autotune lookup --operation {name}` says what is served\n"
        )

    for name in ("flash_attention", "paged_decode"):
        assert run("show", "--operation", name) == (0, hint(name, " on a GPU"), "")
        assert run("export", "--operation", name) == (1, "", f"autotune: {hint(name, ' on a GPU')}")
        assert run("lookup", "--operation", name).code == 0
    assert json.loads(run("show", "--json").out) == []
    assert not machine.home.exists()
    machine.ship_sweep(64)
    assert run("show").out == hint("flash_attention", "")  # a search replays the sweep


def test_show_as_json_has_every_winner(run: Run, tuned: Machine) -> None:
    data = json.loads(run("show", "--json").out)
    assert [trial["shape"]["seq_q"] for trial in data] == [512, 1024, 4096]
    assert [trial["timing"]["median_us"] for trial in data] == [200, 190, 200]


def test_show_reads_another_folder(run: Run, tuned: Machine, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    data = json.loads(run("show", "--tables", tmp_path / "empty", "--json").out)
    assert [trial["timing"]["median_us"] for trial in data] == [200, 200, 200]


def test_what_stands_in_a_table_is_no_markup(run: Run, machine: Machine) -> None:
    machine.tune(sample.trial(baseline="sdpa [/red] :100:"))
    assert " [/red] :100: " in run("show").out


def test_only_an_assumed_device_is_said_to_be_one(run: Run, tuned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = ("lookup",), ("explain", str(sample.FAST))
    assert all("is assumed" in run(*command).out for command in commands)
    assert not any("assumed" in run(*command, "--device", "NVIDIA H200").out for command in commands)
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(platforms, "current_device", lambda index=None: NVIDIA_H200)
    assert not any("assumed" in run(*command).out for command in commands)


def test_lookup_tells_every_rung_and_note(run: Run, tuned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.dispatch.evidence.installed_version", lambda package: "3.9.0")
    ran = run("lookup", "--seq", "512,700,65536", "--device", "NVIDIA H200")
    reasons = [line for line in ran.out.splitlines() if line.startswith("why")]
    assert [line.split()[1] for line in reasons] == ["exact:", "nearest:", "default:"]
    assert ran.out.count("note    measured with triton 3.6.0, here is 3.9.0\n") == 2
    assert ran.out.count("(shipped table)") == 2


def test_a_device_is_named_in_any_case_and_a_near_name_is_told(run: Run, tuned: Machine) -> None:
    assert "device  NVIDIA H200\n" in run("lookup", "--device", "nvidia h200").out
    misspelt, other = (run("lookup", "--device", name) for name in ("NVIDA H200", "NVIDIA H20"))
    assert (misspelt.code, other.code) == (2, 2)
    assert "'NVIDA H200' is unknown" in misspelt.err
    assert misspelt.err.endswith("; did you mean 'NVIDIA H200'?\n")
    assert "; devices with rows: NVIDIA H200; known without rows, the likest first: " in other.err


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("B20O", "NVIDIA B200"),
        ("RTX 4900", "NVIDIA GeForce RTX 4090"),
        ("MI300", "AMD Instinct MI300X"),
        ("L40", "NVIDIA L40S"),
    ],
)
def test_an_unknown_device_is_told_all_that_are_known_the_likest_first(
    run: Run, tuned: Machine, name: str, near: str
) -> None:
    ran = run("lookup", "--device", name)
    assert ran.code == 2
    assert f"; known without rows, the likest first: {near}, " in ran.err
    assert ran.err.endswith("; or an architecture such as sm_80\n")
    assert all(device.name in ran.err for device in platforms.known_devices())


def test_lookup_says_what_to_do_where_nothing_is_recorded(run: Run, tuned: Machine) -> None:
    """On B200s nothing was: what is served meanwhile, that no recording chose it, and the command that records."""
    bare, flex = run("lookup", "--device", "B200").out, run("lookup", "--device", "sm_100", "--among", "flex").out
    why = "no tuned shape of flash_attention/triton on NVIDIA B200 (sm_100): the space's default"
    assert f"\nwhy     default: {why}, as no recording of triton on sm_100 ships\n" in bare
    command, then = tuning_command("flash_attention", sample.shape()), "finds the best and records it"
    assert f"\nnext    `{command}` on an NVIDIA B200 {then}; from then on that is served there\n" in bare
    assert f"\nnext    `{command} --implementation flex` on a GPU of sm_100 {then}" in flex
    assert "next" not in run("lookup").out  # which an H200 recorded
    far = run("lookup", "--seq", "65536", "--device", "H200").out  # of which nothing recorded says how near the best
    assert "--seq 65536 --head-dim 128 --dtype bfloat16` on an NVIDIA H200 finds the best" in far


def test_lookup_does_not_call_a_replayed_time_measured(run: Run, machine: Machine) -> None:
    machine.tune(sample.trial(executor="replay"))
    assert "row     200.0 us, replayed 2026-11-21" in run("lookup").out


def test_lookup_as_json_keeps_people_and_programs_apart(run: Run, tuned: Machine) -> None:
    ran = run("lookup", "--seq", "1024,65536", "--json")
    exact, default = json.loads(ran.out)
    assert ran.err.count("shape   ") == 2
    assert (exact["rung"], exact["origin"], exact["distance"]) == ("exact", "user", 0)
    assert exact["config"] == exact["row"]["config"]
    assert exact["config"]["BLOCK_K"] == 64
    assert (default["rung"], default["origin"], default["row"], default["distance"]) == ("default", "", None, None)
    assert "default" in default["reason"]


def test_exports_are_the_same_on_standard_output_and_in_a_file(run: Run, tuned: Machine, tmp_path: Path) -> None:
    for form in ("json", "csv"):
        out = tmp_path / f"winners.{form}"
        assert run("export", "--format", form, "--output", out) == (0, "", "")
        assert run("export", "--format", form).out == out.read_text()
    rows = json.loads((tmp_path / "winners.json").read_text())["rows"]
    assert [row["seq_q"] for row in rows] == [512, 1024, 4096]
    with (tmp_path / "winners.csv").open(newline="") as file:
        assert [cells["seq_q"] for cells in csv.DictReader(file)] == ["512", "1024", "4096"]
    assert run("export", "--json").out == (tmp_path / "winners.json").read_text()


def test_an_export_for_triton_is_python(run: Run, tuned: Machine, tmp_path: Path) -> None:
    out = tmp_path / "winners.py"
    assert run("export", "--format", "triton-config", "--output", out).code == 0
    configs = runpy.run_path(str(out))["CONFIGS"]
    assert [config.kwargs["BLOCK_K"] for config in configs] == [128, 64]
    assert [(config.num_warps, config.num_stages) for config in configs] == [(8, 2), (8, 2)]


def test_a_sweep_is_exported_as_t4(run: Run, machine: Machine) -> None:
    machine.ship_sweep(1024)
    document = json.loads(run("export", "--format", "t4", "--sweep", "triton_1024").out)
    assert {result["invalidity"] for result in document["results"]} >= {"correct"}
    write_shipped(Path("nvidia_h200/paged_decode/sweeps/triton_paged.parquet"), paged_sweep(), results=machine.results)
    document = json.loads(run("export", "--format", "t4", "--sweep", "triton_paged").out)  # by its name alone
    assert document["metadata"]["kernel"] == "paged_decode/triton"
    assert "recorded: triton_1024, triton_paged\n" in run("export", "--format", "t4", "--sweep", "absent").err
    other = ("--format", "t4", "--operation", "paged_decode", "--sweep", "triton_1024")
    assert "recorded: triton_paged\n" in run("export", *other).err
    refused = run("export", "--format", "xml")
    allowed = "csv, json, triton-config, flex, python, vllm, t4 (with --sweep)"
    assert refused.err == f"autotune: --format='xml' is unknown; allowed: {allowed}\n"
    for options in (("--format", "t4"), ("--sweep", "seq_1024")):
        ran = run("export", *options)
        assert (ran.code, "expected --format t4 --sweep NAME together" in ran.err) == (2, True)


def test_readers_write_nothing(run: Run, tuned: Machine) -> None:
    def files() -> dict[Path, bytes]:
        folders = (tuned.home, tuned.results)
        return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}

    before = files()
    for command in ("show", "lookup", "export", "doctor"):
        assert run(command).code == 0
    assert files() == before


def test_doctor_ends_well_whatever_it_finds(run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("the driver [is] gone")

    monkeypatch.setattr(platforms, "toolchain", broken)
    ran = run("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert "--  torch           the driver [is] gone\n" in ran.out
    assert "fix: none needed to replay sweeps" in ran.out
    assert not machine.home.exists()


def test_doctor_as_json_has_every_finding(run: Run, tuned: Machine) -> None:
    findings = json.loads(run("doctor", "--json").out)
    assert {"system", "python", "torch", "triton", "gpu", "folder"} <= {finding["subject"] for finding in findings}
    assert all(finding.keys() == {"subject", "ok", "text", "fix"} for finding in findings)
    (shipped,) = [finding for finding in findings if finding["subject"] == "shipped tables"]
    assert "flash_attention: 3 winners" in shipped["text"]
