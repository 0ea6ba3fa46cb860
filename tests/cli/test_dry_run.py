"""``search --dry-run`` says what would happen, opens no GPU and writes nothing."""

import json
from collections.abc import Callable

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.executor import select
from autotune.registry import our_implementations
from tests import sample
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]


def test_a_dry_run_says_what_would_happen_and_writes_nothing(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    ran = run("search", "--seq", "64,96", "--dry-run", "--trials", "30", "--sampler", "tpe")
    assert (ran.code, ran.err) == (0, "")
    words = [line.split()[0] for line in ran.out.splitlines() if line and not line.startswith((" ", "pruned"))]
    plan = ["flash_attention/triton:", "space", "default", "known", "sampler", "expected"]
    assert words == ["no", *plan, "skipped", "skipped", "not"]
    assert "sampler   tpe, 30 trials at most that reach the device\n" in ran.out
    assert "assuming 1.5 s to compile a config" in ran.out
    assert not machine.home.exists()


def test_an_implementation_without_a_recording_is_skipped_as_a_search_skips_it(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    asked = ("search", "--seq", "64", "--implementation", "triton,flex", "--dry-run")
    ran = run(*asked)
    assert ran.code == 0
    assert "\nskipped   no sweep of flash_attention/flex is recorded for batch " in ran.out
    assert "flash_attention/flex: " not in ran.out
    planned, skipped = json.loads(run(*asked, "--json").out)
    assert (planned["implementation"], planned["executor"]) == ("triton", "replay")
    assert (skipped["implementation"], skipped["skipped"].split(" is ")[0]) == (
        "flex",
        "no sweep of flash_attention/flex",
    )


def test_a_dry_run_refuses_a_budget_that_a_search_refuses(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    said = {run("search", "--seq", "64", "--budget", "1s", *more).err for more in ((), ("--dry-run",))}
    assert said == {
        "autotune: the budget of 1 s cannot hold a search: 2 s are kept for its race; give it at least 3 s\n"
    }


def test_a_dry_run_beside_a_gpu_does_not_open_it(run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(platforms, "current_device", lambda index=None: NVIDIA_H200)
    monkeypatch.delattr(select, "GpuExecutor")
    ran = run("search", "--seq", "64,128", "--model", "flux.1", "--dry-run", "--json", "--jobs", "2")
    assert ran.code == 0
    plans = json.loads(ran.out)
    ours = our_implementations("flash_attention")
    assert [(plan["executor"], plan["shape"]["seq_q"], plan["implementation"], plan["jobs"]) for plan in plans] == [
        ("gpu", length, each.name, 2)
        for length in (64, 128)
        for each in ours
        if each.supports(sample.shape(length), NVIDIA_H200) is None
    ]
    assert all(plan["size"] == plan["valid"] + sum(group["count"] for group in plan["pruned"]) for plan in plans)
    assert not machine.home.exists()
