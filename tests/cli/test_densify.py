"""``search --densify``: which shapes it tunes, and what it says of them."""

import json
from collections.abc import Callable

import pytest

from autotune.dispatch import get_kernel
from autotune.registry import get_operation
from autotune.table import record_miss
from autotune.trial import Candidate
from tests import sample
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.dispatch.evidence.installed_version", lambda package: sample.TOOLCHAIN.triton)


def test_what_is_tuned_is_left_alone_and_the_others_are_tuned_as_the_budget_allows(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    machine.ship_sweep(64)
    machine.tune(sample.trial(sample.shape(1024)))
    words = ("search", "--densify", "--seq", "64,1024,128", "--trials", "5", "--budget", "100s")
    dry = run(*words, "--dry-run")
    assert dry.code == 0
    assert dry.out.splitlines()[:4] == [
        "sparse    2 of 3 shapes on an NVIDIA H200: 0 above 5.0 %, 2 of which nothing is known",
        f"regret    not known (default): flash_attention: {sample.shape(64)}",
        "left      1 shape: raise --budget, or run the same command again",
        "",
    ]
    assert "sampler   gp, 5 trials at most" in dry.out
    assert len(machine.kept()) == 1
    ran = run(*words)
    assert ran.code == 0
    assert "saved     " in ran.out
    assert {row.shape for row in machine.kept()} == {sample.shape(1024), sample.shape(64)}
    assert get_kernel(sample.shape(64), device="NVIDIA H200").provenance.rung == "exact"


def test_missed_shapes_are_looked_up_where_no_shape_is_named(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    assert run("search", "--densify").out.startswith("nothing to tune: no shape was noted")
    machine.tune(sample.trial(sample.shape(1024)))
    record_miss(get_operation("flash_attention"), sample.shape(1024))
    ran = run("search", "--densify")
    assert (ran.code, ran.out.splitlines()[0]) == (
        0,
        "sparse    0 of 1 shape on an NVIDIA H200: 0 above 5.0 %, 0 of which nothing is known",
    )
    assert json.loads(run("search", "--densify", "--json").out) == []
    dry = run("search", "--densify", "--from-misses", "--above", "0.5%", "--dry-run")
    assert f"regret    1.0 % expected; 0 % measured at {sample.shape(1024)} (exact): flash_attention: " in dry.out


def test_the_bound_is_percent_and_is_of_densify_alone(run: Run) -> None:
    assert "--above='5%' is the bound of --densify; name both or neither" in run("search", "--above", "5%").err
    ambiguous = "--above='0.05' may mean two shares; expected percent with its sign, 5% or 0.05%"
    assert ambiguous in run("search", "--densify", "--above", "0.05").err
    assert "--above='high' is no share; expected percent" in run("search", "--densify", "--above", "high").err
