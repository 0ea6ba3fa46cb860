"""``--implementation flex``: planned anywhere, searched on a GPU or by replay, served where its name is given."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.search_spaces.flash_attention.flex import IMPLEMENTATION, kernel_options
from autotune.shape import AttentionShape
from autotune.table import write_shipped
from autotune.trial import Stage
from tests import flex_sample, sample
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]
FLEX = ("--implementation", "flex")
NAMES = tuple(parameter.name for parameter in IMPLEMENTATION.space.parameters)
LLAMA, *_, ENCODER = flex_sample.SHAPES


def test_a_search_is_planned_without_a_gpu(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)  # of triton: what there is to replay
    ran = run("search", *FLEX, "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert "not recorded: a search of this needs the GPU; planned as on an NVIDIA H200" in ran.out
    assert f"flash_attention/flex: {sample.shape()}\n" in ran.out
    assert "default   BLOCK_M=128 BLOCK_N=64 num_warps=8 num_stages=3 PRESCALE_QK=0" in ran.out
    assert "with 1 compiler" in ran.out
    assert not machine.home.exists()


def test_a_search_without_a_gpu_says_that_nothing_is_recorded(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    ran = run("search", *FLEX)
    assert ran.code == 1
    assert "no sweep of flash_attention/flex is recorded on NVIDIA H200: its search needs the GPU" in ran.err
    assert not machine.home.exists() or not any(machine.home.rglob("*.parquet"))


def test_lookup_serves_it_by_its_name_alone(run: Run, machine: Machine) -> None:
    found = [json.loads(run("lookup", *options, "--json").out)[0] for options in (("--among", "flex"), ())]
    assert [each["implementation"] for each in found] == ["flex", "triton"]
    assert tuple(found[0]["config"]) == NAMES
    assert "BLOCK_Q" in found[1]["config"]


def test_an_export_of_what_has_no_options_for_torch_is_refused(run: Run, machine: Machine) -> None:
    ran = run("export", *FLEX, "--format", "flex")
    hint = "no winners of flash_attention/flex yet: `autotune search --operation flash_attention --implementation flex`"
    assert (ran.code, hint in ran.err) == (1, True)
    machine.ship(sample.trial())
    assert hint in run("export", *FLEX).err  # although there are some of the other
    ran = run("export", "--format", "flex")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "flash_attention/triton" in ran.err


def asked(shape: AttentionShape) -> list[str]:
    """The options that name a shape."""
    fields = {"batch": shape.batch, "heads": shape.heads, "kv-heads": shape.kv_heads, "seq": shape.seq_q}
    fields |= {"head-dim": shape.head_dim, "window": shape.window or 0}
    flags = ["--causal" if shape.causal else "--no-causal", *(["--softcap"] if shape.softcap else [])]
    given = [str(word) for name, value in fields.items() if value for word in (f"--{name}", value)]
    return [*given, *flags]


@pytest.fixture
def shipped(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Winners of all eight problems, recorded with torch 2.11 and read where 2.13 is installed."""
    flex_sample.install(monkeypatch, "2.13.0+cpu")
    flex_sample.ship(machine.results, flex_sample.winners())
    return machine


def test_the_winners_are_shown_by_their_options(run: Run, shipped: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    title, head, *lines = run("show", *FLEX).out.splitlines()
    assert title.strip() == "NVIDIA H200, flex"
    assert tuple(head.split()[: 1 + len(NAMES)]) == ("shape", *NAMES)
    assert sorted(line.split("  ")[0] for line in lines) == sorted(map(str, flex_sample.SHAPES))
    (line,) = [line for line in lines if line.startswith(str(ENCODER))]
    assert line.removeprefix(str(ENCODER)).split()[:4] == ["128", "128", "4", "2"]
    assert "1.25x" in line
    shown = json.loads(run("show", *FLEX, "--json").out)
    assert {row["implementation"] for row in shown} == {"flex"}
    assert {AttentionShape(**row["shape"]) for row in shown} == set(flex_sample.SHAPES)
    assert {row["toolchain"]["torch"] for row in shown} == {"2.11.0+cu130"}


@pytest.mark.parametrize("shape", flex_sample.SHAPES, ids=str)
def test_each_winner_is_looked_up_and_says_that_torch_is_another(
    run: Run, shipped: Machine, shape: AttentionShape
) -> None:
    ran = run("lookup", "--among", "flex", *asked(shape), "--json")
    (found,) = json.loads(ran.out)
    assert (found["rung"], found["origin"], AttentionShape(**found["shape"])) == ("exact", "shipped", shape)
    assert found["config"] == dict(flex_sample.tuned(shape))
    assert (found["implementation"], found["baseline"]) == ("flex", "")
    assert found["notes"][0] == "measured with torch 2.11.0+cu130, here is 2.13.0+cpu"
    assert "measured 2026-11-21 with triton 3.6.0, torch 2.11.0+cu130, driver 580.1 (shipped table)" in ran.err


def test_a_winner_of_the_torch_that_is_here_needs_no_note(
    run: Run, shipped: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flex_sample.install(monkeypatch, "2.11.0+cpu")
    assert "with torch 2.11.0+cu130, here" not in run("lookup", "--among", "flex", *asked(LLAMA)).out
    flex_sample.install(monkeypatch, "")  # where no torch is, none differs
    assert "torch" not in run("lookup", "--among", "flex", *asked(LLAMA)).out.partition("\nnote")[2]


def test_its_configs_are_explained(run: Run, shipped: Machine) -> None:
    swept = flex_sample.ship_sweep(shipped.results)
    won = run("explain", str(flex_sample.tuned(LLAMA)), *FLEX, *asked(LLAMA)).out
    assert won.splitlines()[1:3] == ["kernel    flex", f"config    {flex_sample.tuned(LLAMA)}"]
    assert "verdict   won; worth using: 25 % faster than the space's default" in won
    assert "with triton 3.6.0, torch 2.11.0+cu130, driver 580.1 in the shipped winners" in won
    failed = next(trial for trial in swept if trial.timing is None)
    lost = max((trial for trial in swept if trial.timing), key=lambda trial: flex_sample.microseconds(trial.config))
    small = (*FLEX, *asked(flex_sample.SMALL))
    assert (
        f"verdict   failed at screening as out_of_resources: {flex_sample.TOO_LARGE}\n"
        in run("explain", str(failed.config), *small).out
    )
    assert "verdict   lost at screening" in run("explain", str(lost.config), *small).out
    refused = run("explain", "BLOCK_Q=64", *small)
    assert (refused.code, refused.err.count("BLOCK_M, BLOCK_N, num_warps, num_stages, PRESCALE_QK")) == (2, 1)


def test_all_winners_are_exported_for_torch(run: Run, shipped: Machine) -> None:
    found = json.loads(run("export", *FLEX, "--format", "flex").out)
    assert {AttentionShape(**each["shape"]): each["kernel_options"] for each in found} == {
        shape: kernel_options(flex_sample.tuned(shape)) for shape in flex_sample.SHAPES
    }


@pytest.mark.slow
def test_what_ships_is_reported(run: Run, shipped: Machine, tmp_path: Path) -> None:
    rows = len(flex_sample.ship_sweep(shipped.results)) + 8
    page = tmp_path / "page.html"
    ran = run("report", "shipped", "--operation", "flash_attention", "--output", page)
    assert (ran.code, ran.out.startswith(f"{page}: {rows} rows of the shipped tables")) == (0, True)
    text = page.read_text(encoding="utf-8")
    assert "by BLOCK_M (down) and BLOCK_N (across)" in text
    assert all(str(shape) in text for shape in flex_sample.SHAPES)


def test_a_replayed_search_ends_well_and_says_that_nothing_was_confirmed(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flex_sample.install(monkeypatch, "2.13.0+cpu")
    flex_sample.ship_sweep(machine.results)
    command = ("search", *FLEX, *asked(flex_sample.SMALL), "--trials", "12")
    ran = run(*command, "--target", "gfx942")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("no GPU here: times come from a sweep recorded on an NVIDIA H200\n")
    assert "compiling" not in ran.out
    why = "torch compiles flash_attention/flex only on the device that runs it"
    assert f"checked   nothing here: {why}; its numbers were checked where it was timed\n" in ran.out
    assert f"target    nothing is compiled for gfx942: {why}\n" in ran.out
    assert "winner    BLOCK_M=128" in ran.out
    kept = machine.kept()
    assert {(trial.implementation, trial.executor) for trial in kept} == {("flex", "replay")}
    assert {trial.source_hash for trial in kept} == {flex_sample.SOURCE}  # of the torch whose times these are
    again = run(*command, "--json")
    (found,) = json.loads(again.out)
    screened = sum(trial.stage is Stage.SCREEN for trial in kept)
    assert (found["measured"], found["resumed"], found["confirmation"]) == (0, screened, None)
    assert machine.kept() == kept


def ship_both(machine: Machine) -> None:
    """Sweeps of one shape of both implementations; 100 us are the best of flex, more than 200 that of triton."""
    flex_sample.ship_sweep(machine.results)
    path = Path("nvidia_h200/flash_attention/sweeps/triton_small.parquet")
    write_shipped(path, sample.sweep(flex_sample.SMALL), results=machine.results)


def test_two_implementations_are_searched_by_replay_and_the_faster_wins(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flex_sample.install(monkeypatch, "2.11.0+cpu")
    ship_both(machine)
    both = ("search", "--implementation", "triton,flex", *asked(flex_sample.SMALL), "--trials", "24")
    ran = run(*both)
    assert (ran.code, ran.err) == (0, "")
    (counts,) = [line for line in ran.out.splitlines() if " valid configs (" in line]
    assert counts.endswith(" of triton, 128 of flex)")
    assert "\nracing " in ran.out
    assert " finalists, the defaults among them, against the fastest baseline\n" in ran.out
    assert "; best 100.0 us, flex BLOCK_M=128 " in ran.out
    assert "\nwinner    flex BLOCK_M=128 " in ran.out
    assert {trial.implementation for trial in machine.kept()} == {"triton", "flex"}
    (found,) = json.loads(run(*both, "--json").out)
    assert found["winner"]["implementation"] == found["best"]["implementation"] == "flex"
    parts = {part["implementation"]: part for part in found["implementations"]}
    screened = sum(trial.stage is Stage.SCREEN for trial in machine.kept())
    assert sum(part["resumed"] for part in parts.values()) == found["resumed"] == screened >= 24
    assert all(part["resumed"] > 0 and part["skipped"] == "" for part in parts.values())


def test_one_that_is_not_recorded_is_left_out_and_said(run: Run, machine: Machine, confirmed: list[object]) -> None:
    machine.ship_sweep(64)
    ran = run("search", "--implementation", "triton,flex", "--seq", "64", "--trials", "3")
    assert (ran.code, ran.err) == (0, "")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("skipped")]
    assert "flex" in line
    assert "\nwinner    BLOCK_Q=" in ran.out  # of the only one that was searched
    (found,) = json.loads(
        run("search", "--implementation", "triton,flex", "--seq", "64", "--trials", "3", "--json").out
    )
    assert [bool(part["skipped"]) for part in found["implementations"]] == [False, True]


def test_both_are_planned_one_after_the_other(run: Run, machine: Machine) -> None:
    ship_both(machine)
    command = ("search", "--implementation", "triton,flex", *asked(flex_sample.SMALL), "--dry-run", "--json")
    plans = json.loads(run(*command).out)
    assert [(plan["implementation"], plan["executor"]) for plan in plans] == [("triton", "replay"), ("flex", "replay")]


def test_an_unknown_implementation_is_refused_with_the_known_ones(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    machine.ship(sample.trial())
    commands = (("search", "--seq", "64"), ("show",), ("export",), ("explain", str(sample.FAST)))
    names = (
        "triton, gluon_hopper, gluon_hopper_fp8, triton_split_keys, triton_masked, triton_split_width, "
        "triton_split_values, flex"
    )
    for command in commands:
        ran = run(*command, "--implementation", "cuda")
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), command
        assert f"implementation='cuda' of flash_attention is unknown; registered: {names}" in ran.err
    ran = run("lookup", "--among", "cuda")
    assert (ran.code, ran.out) == (2, "")
    allowed = f"ours, fastest, or implementations of flash_attention: {names}"
    assert f"among='cuda' is unknown; allowed: {allowed}" in ran.err


def test_a_replay_of_ours_is_confirmed_beside_a_recorded_flex(
    run: Run, machine: Machine, confirmed: list[object]
) -> None:
    machine.ship_sweep(64)
    flex_sample.ship_sweep(machine.results)
    out = run("search", "--seq", "64", "--trials", "3").out
    assert "compiling and checking happen on this CPU" in out
    assert len(confirmed) == 1
