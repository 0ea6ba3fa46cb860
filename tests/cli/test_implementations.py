"""Several implementations of an operation in the readers, and rows that are not of today's space."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import registry
from tests import flex_sample, sample
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]

LONE = replace(registry.get_operation("flash_attention"), name="lone")
SHAPE = sample.shape()
FLEX = flex_sample.trial(SHAPE, timing=sample.timing(150), baseline_timing=sample.timing(120))
OUTSIDE = "BLOCK_K=48 is not one of (16, 32, 64, 128, 256)"


@pytest.fixture
def both(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A winner of triton and a faster one of flex, which sdpa cudnn beat in its race."""
    flex_sample.install(monkeypatch, "2.11.0+cpu")
    machine.ship(sample.trial())
    machine.ship(FLEX)
    return machine


@pytest.fixture
def planted(both: Machine) -> Path:
    """A row of the user, faster than all others, whose BLOCK_K is not of the space."""
    return both.plant(sample.trial(timing=sample.timing(50)), BLOCK_K=48)


def test_show_lists_each_implementation_in_a_sheet_of_its_own(run: Run, both: Machine) -> None:
    first, ours, row, second, theirs, other = run("show").out.splitlines()
    assert [first, second] == ["NVIDIA H200, triton", "NVIDIA H200, flex"]
    assert ours.split()[1:6] == ["BLOCK_Q", "BLOCK_K", "num_warps", "num_stages", "loads"]
    assert theirs.split()[1:5] == ["BLOCK_M", "BLOCK_N", "num_warps", "num_stages"]
    assert ("200.0 us" in row, "150.0 us" in other) == (True, True)
    assert run("show", "--implementation", "flex").out.splitlines() == [second, theirs, other]
    assert run("show", "--implementation", "flex,triton").out.splitlines()[0] == second  # in the order that is named
    data = json.loads(run("show", "--json").out)
    assert [row["implementation"] for row in data] == ["triton", "flex"]


def test_show_all_lists_the_rows_that_are_not_of_the_space_with_the_reason(run: Run, planted: Path) -> None:
    assert "not of this space" not in run("show").out
    title, head, row = run("show", "--all").out.splitlines()[-3:]
    assert title == "not of this space: kept, never served"
    assert head.split() == ["file", "row", "implementation", "device", "time", "reason"]
    assert row.split() == [str(planted), "0", "triton", "NVIDIA", "H200", "50.0", "us", *OUTSIDE.split()]
    *_, outsider = json.loads(run("show", "--all", "--json").out)
    assert (outsider["outside"], outsider["median_us"], outsider["BLOCK_K"]) == (OUTSIDE, 50.0, 48)
    assert (outsider["operation"], outsider["implementation"]) == ("flash_attention", "triton")
    for others in (("--implementation", "flex"), ("--device", "NVIDIA B200", "--operation", "paged_decode")):
        out = run("show", "--all", *others).out
        assert "not of this space" not in out


def test_show_all_says_that_there_are_none(run: Run, both: Machine) -> None:
    assert run("show", "--all").out.splitlines()[-1] == "every row is of today's space"


def test_a_row_that_is_not_of_the_space_is_never_served(run: Run, planted: Path) -> None:
    for among in ("ours", "fastest", "triton"):
        (found,) = json.loads(run("lookup", "--among", among, "--json").out)
        assert found["row"]["timing"]["median_us"] in (150.0, 200.0)
    assert all(row["timing"]["median_us"] > 50 for row in json.loads(run("show", "--json").out))


def test_the_doctor_counts_the_rows_that_are_not_of_the_space_and_names_what_lists_them(
    run: Run, both: Machine
) -> None:
    def line() -> str:
        ran = run("doctor", "--json")
        assert ran.code == 0  # they are no damage
        (found,) = [found for found in json.loads(ran.out) if found["subject"] == "outside rows"]
        assert (found["ok"], found["fix"]) == (True, "")
        return str(found["text"])

    assert line() == "every row is of today's spaces"
    path = both.plant(sample.trial(), BLOCK_K=48)
    text, command, rest = line().split("`")
    assert (text, rest) == (f"1 row kept and never served, for example {path}, row 0: {OUTSIDE}; ", " lists them")
    assert run(*command.removeprefix("autotune ").split()).out.count(OUTSIDE) == 1


def test_explain_notes_that_rows_are_not_of_the_space(run: Run, planted: Path) -> None:
    out = run("explain", str(sample.FAST)).out
    note = "outside today's space: 1 row of triton"
    command = "autotune show --all --operation flash_attention --implementation triton"
    assert f"\nnote      {note}, which `{command}` lists\n" in out
    assert OUTSIDE in run(*command.split()[1:]).out
    assert note not in run("explain", str(FLEX.config), "--implementation", "flex").out


def test_lookup_names_the_implementation_and_the_baseline_that_are_served(run: Run, both: Machine) -> None:
    ours, fastest, named = (run("lookup", "--among", among).out for among in ("ours", "fastest", "triton, flex"))
    assert f"\nkernel  triton\nconfig  {sample.FAST}\n" in ours
    assert "\nrow     200.0 us, " in ours
    assert f"\nkernel  flex\nconfig  {FLEX.config}\n" in named
    assert "\nrow     150.0 us, " in named
    assert "\nkernel  sdpa cudnn\nconfig  none: it is not ours to tune\n" in fastest
    assert "\nwhy     exact: sdpa cudnn won the race of the kernel tuned for this shape on NVIDIA H200\n" in fastest
    assert "\nrow     120.0 us, " in fastest  # of the baseline, not of the row that it beat
    (data,) = json.loads(run("lookup", "--among", "fastest", "--json").out)
    assert (data["implementation"], data["baseline"], data["config"]) == ("sdpa cudnn", "sdpa cudnn", {})
    assert data["row"]["implementation"] == "flex"


def test_an_export_is_of_ours_first_or_of_the_one_that_is_named(run: Run, both: Machine) -> None:
    def names(*options: str) -> set[str]:
        return {row["implementation"] for row in json.loads(run("export", *options).out)["rows"]}

    assert names() == {"triton"}
    assert names("--implementation", "flex") == {"flex"}
    assert "'BLOCK_M': " in run("export", "--implementation", "flex", "--format", "triton-config").out


def test_an_export_of_the_only_one_that_has_winners_needs_no_name(run: Run, machine: Machine) -> None:
    machine.ship(FLEX)
    assert {row["implementation"] for row in json.loads(run("export").out)["rows"]} == {"flex"}


@pytest.mark.parametrize("command", [("search", "--dry-run"), ("search",), ("explain", "BLOCK_Q=64")])
def test_an_operation_without_an_implementation_is_said_to_have_none(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    machine.ship_sweep(1024)
    monkeypatch.setitem(registry._operations, "lone", f"{__name__}:LONE")
    ran = run(*command, "--operation", "lone")
    assert (ran.code, ran.out) == (2, "")
    assert "--operation='lone' has no implementation of ours; to be named: none" in ran.err
