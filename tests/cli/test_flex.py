"""``--operation flex_attention``: planned anywhere, searched on a GPU or by replay, served where its name is given."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.search_spaces.flex_attention import OPERATION, kernel_options
from autotune.shape import AttentionShape
from autotune.table import Store
from autotune.trial import Stage
from tests.cli.conftest import Machine, Ran
from tests.report import flex_sample

Run = Callable[..., Ran]
FLEX = ("--operation", "flex_attention", "--seq", "1024")
NAMES = tuple(parameter.name for parameter in OPERATION.space.parameters)
LLAMA, *_, ENCODER = flex_sample.SHAPES


def test_a_search_is_planned_without_a_gpu(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)  # of flash attention: what there is to replay
    ran = run("search", *FLEX, "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert "not recorded: a search of this needs the GPU; planned as on an NVIDIA H200" in ran.out
    assert "default   BLOCK_M=128 BLOCK_N=64 num_warps=8 num_stages=3 PRESCALE_QK=0" in ran.out
    assert "with 1 compiler" in ran.out
    assert not machine.home.exists()


def test_a_search_without_a_gpu_says_that_nothing_is_recorded(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    ran = run("search", *FLEX)
    assert ran.code == 1
    assert "no sweep of flex_attention is recorded on NVIDIA H200: its search needs the GPU" in ran.err
    assert not machine.home.exists() or not any(machine.home.rglob("*.parquet"))


def test_lookup_serves_it_by_its_name_alone(run: Run, machine: Machine) -> None:
    found = [json.loads(run("lookup", *options, "--json").out)[0] for options in (FLEX, FLEX[2:])]
    names = [tuple(item["config"]) for item in found]
    assert names[0] == tuple(parameter.name for parameter in OPERATION.space.parameters)
    assert "BLOCK_Q" in names[1]


def test_an_export_of_what_has_no_options_for_torch_is_refused(run: Run, machine: Machine) -> None:
    ran = run("export", *FLEX[:2], "--format", "kernel_options")
    assert (ran.code, "no winners of flex_attention yet" in ran.err) == (1, True)


def asked(shape: AttentionShape) -> list[str]:
    """The options that name a shape."""
    fields = {"batch": shape.batch, "heads": shape.heads, "kv-heads": shape.kv_heads, "seq": shape.seq_q}
    fields |= {"head-dim": shape.head_dim, "window": shape.window or 0}
    flags = ["--causal" if shape.causal else "--no-causal", *(["--softcap"] if shape.softcap else [])]
    given = [str(word) for name, value in fields.items() if value for word in (f"--{name}", value)]
    return ["--operation", "flex_attention", *given, *flags]


@pytest.fixture
def shipped(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Winners of all eight problems, recorded with torch 2.11 and read where 2.13 is installed."""
    flex_sample.install(monkeypatch, "2.13.0+cpu")
    flex_sample.ship(machine.results, flex_sample.winners())
    return machine


def test_the_winners_are_shown_by_their_options(run: Run, shipped: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    title, head, *lines = run("show", "--operation", "flex_attention").out.splitlines()
    assert title.strip() == "NVIDIA H200"
    assert tuple(head.split()[: 1 + len(NAMES)]) == ("shape", *NAMES)
    assert sorted(line.split("  ")[0] for line in lines) == sorted(map(str, flex_sample.SHAPES))
    (line,) = [line for line in lines if line.startswith(str(ENCODER))]
    assert line.removeprefix(str(ENCODER)).split()[:4] == ["128", "128", "4", "2"]
    assert "1.25x" in line
    shown = json.loads(run("show", "--operation", "flex_attention", "--json").out)
    assert {AttentionShape(**row["shape"]) for row in shown} == set(flex_sample.SHAPES)
    assert {row["toolchain"]["torch"] for row in shown} == {"2.11.0+cu130"}


@pytest.mark.parametrize("shape", flex_sample.SHAPES, ids=str)
def test_each_winner_is_looked_up_and_says_that_torch_is_another(
    run: Run, shipped: Machine, shape: AttentionShape
) -> None:
    ran = run("lookup", *asked(shape), "--json")
    (found,) = json.loads(ran.out)
    assert (found["rung"], found["origin"], AttentionShape(**found["shape"])) == ("exact", "shipped", shape)
    assert found["config"] == dict(flex_sample.tuned(shape))
    assert found["notes"][0] == "torch has changed since it was tuned"
    assert "measured 2026-11-21 with triton 3.6.0, torch 2.11.0+cu130, driver 580.1 (shipped table)" in ran.err


def test_a_winner_of_the_torch_that_is_here_needs_no_note(
    run: Run, shipped: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flex_sample.install(monkeypatch, "2.11.0+cpu")
    assert "torch has changed" not in run("lookup", *asked(LLAMA)).out


def test_its_configs_are_explained(run: Run, shipped: Machine) -> None:
    swept = flex_sample.ship_sweep(shipped.results)
    won = run("explain", str(flex_sample.tuned(LLAMA)), *asked(LLAMA)).out
    assert "verdict   won; worth using: 25 % faster than the untuned default" in won
    assert "with triton 3.6.0, torch 2.11.0+cu130, driver 580.1 in the shipped winners" in won
    failed = next(trial for trial in swept if trial.timing is None)
    lost = max((trial for trial in swept if trial.timing), key=lambda trial: flex_sample.microseconds(trial.config))
    small = asked(flex_sample.SMALL)
    assert (
        f"verdict   failed at screening as out_of_resources: {flex_sample.TOO_LARGE}\n"
        in run("explain", str(failed.config), *small).out
    )
    assert "verdict   lost at screening" in run("explain", str(lost.config), *small).out
    refused = run("explain", "BLOCK_Q=64", *small)
    assert (refused.code, refused.err.count("BLOCK_M, BLOCK_N, num_warps, num_stages, PRESCALE_QK")) == (2, 1)


def test_all_winners_are_exported_for_torch(run: Run, shipped: Machine) -> None:
    found = json.loads(run("export", "--operation", "flex_attention", "--format", "kernel_options").out)
    assert {AttentionShape(**each["shape"]): each["kernel_options"] for each in found} == {
        shape: kernel_options(flex_sample.tuned(shape)) for shape in flex_sample.SHAPES
    }


def test_what_ships_is_reported(run: Run, shipped: Machine, tmp_path: Path) -> None:
    rows = len(flex_sample.ship_sweep(shipped.results)) + 8
    page = tmp_path / "page.html"
    ran = run("report", "shipped", "--operation", "flex_attention", "--output", page)
    assert (ran.code, ran.out.startswith(f"{page}: {rows} rows of the shipped tables")) == (0, True)
    text = page.read_text(encoding="utf-8")
    assert "by BLOCK_M (down) and BLOCK_N (across)" in text
    assert all(str(shape) in text for shape in flex_sample.SHAPES)


def test_a_replayed_search_ends_well_and_says_that_nothing_was_confirmed(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flex_sample.install(monkeypatch, "2.13.0+cpu")
    flex_sample.ship_sweep(machine.results)
    command = ("search", *asked(flex_sample.SMALL), "--trials", "12")
    ran = run(*command, "--target", "gfx942")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("no GPU here: times come from a sweep recorded on an NVIDIA H200\n")
    assert "compiling" not in ran.out
    why = "torch compiles flex_attention only on the device that runs it"
    assert f"checked   nothing here: {why}; its numbers were checked where it was timed\n" in ran.out
    assert f"target    nothing is compiled for gfx942: {why}\n" in ran.out
    assert "winner    BLOCK_M=128" in ran.out
    kept = Store(machine.home).trials("flex_attention")
    assert {trial.executor for trial in kept} == {"replay"}
    assert {trial.source_hash for trial in kept} == {flex_sample.SOURCE}  # of the torch whose times these are
    again = run(*command, "--json")
    (found,) = json.loads(again.out)
    screened = sum(trial.stage is Stage.SCREEN for trial in kept)
    assert (found["measured"], found["resumed"], found["confirmation"]) == (0, screened, None)
    assert Store(machine.home).trials("flex_attention") == kept


def test_a_replay_of_ours_is_confirmed_beside_a_recorded_flex_attention(
    run: Run, machine: Machine, confirmed: list[object]
) -> None:
    machine.ship_sweep(64)
    flex_sample.ship_sweep(machine.results)
    out = run("search", "--seq", "64", "--trials", "3").out
    assert "compiling and checking happen on this CPU" in out
    assert len(confirmed) == 1
