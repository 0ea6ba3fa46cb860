"""``explain``: the rows of the user's tables and of the shipped sweeps, in the order in which they are believed."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.registry import get_implementation
from autotune.trial import Policy, Stage, Status
from tests import sample
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]

FAST = str(sample.FAST)
OTHER = sample.config(BLOCK_Q=64, BLOCK_K=64, num_warps=4)


def test_a_swept_config_is_explained_by_the_shipped_sweep(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    won = run("explain", "BLOCK_Q=64 BLOCK_K=64 num_warps=4 num_stages=2 loads=descriptor", "--seq", "64")
    assert (won.code, won.err) == (0, "")
    assert "verdict   won; " in won.out
    assert "in the shipped sweep triton_64\n" in won.out
    lost = run("explain", "BLOCK_Q=16 BLOCK_K=16 num_warps=1 num_stages=5 loads=pointer", "--seq", "64", "--json")
    (data,) = json.loads(lost.out)
    assert (data["fate"], data["stage"], data["source"]) == ("lost", "screen", "the shipped sweep triton_64")
    assert data["trial"]["timing"]["median_us"] > data["rival"]["timing"]["median_us"]
    assert data["faster"] > 0
    assert "verdict   lost at screening" in lost.err
    assert not machine.home.exists()


def test_the_users_measurement_is_believed_before_what_ships_and_a_replay_last(run: Run, machine: Machine) -> None:
    def place() -> str:
        (data,) = json.loads(run("explain", FAST, "--json").out)
        return f"{data['source']}: {data['trial']['timing']['median_us']:.0f}"

    machine.tune(sample.trial(executor="replay", timing=sample.timing(400)))
    assert place() == "your tables: 400"
    machine.ship(sample.trial(timing=sample.timing(300)))
    assert place() == "the shipped winners: 300"
    machine.tune(sample.trial(timing=sample.timing(200)))
    assert place() == "your tables: 200"


def test_a_config_is_taken_as_winners_are_printed_with_its_implementation(run: Run, machine: Machine) -> None:
    machine.tune(sample.trial())
    assert run("explain", f"triton {FAST}").out == run("explain", FAST).out
    ran = run("explain", f"triton {FAST}", "--implementation", "gluon_hopper")
    assert (ran.code, ran.err) == (2, "autotune: config is of triton, --implementation='gluon_hopper'; name one\n")


def test_a_winner_that_another_implementation_replaces_says_so(run: Run, machine: Machine) -> None:
    config = get_implementation("flash_attention", "gluon_hopper").space.default(sample.shape(), NVIDIA_H200)
    faster = sample.trial(chosen=config, implementation="gluon_hopper", timing=sample.timing(100.0))
    machine.tune(sample.trial())
    assert "instead" not in run("explain", FAST).out
    machine.tune(faster)
    assert f"\ninstead   gluon_hopper {config}, 100.0 us, is served\n" in run("explain", FAST).out
    assert "instead" not in run("explain", str(config)).out


def test_rows_of_two_policies_are_not_mixed(run: Run, machine: Machine) -> None:
    eager = Policy("eager", "warm")
    machine.tune(sample.trial(policy=eager, timing=sample.timing(100)), sample.trial(chosen=OTHER))
    assert "verdict   won; " in run("explain", str(OTHER)).out
    out = run("explain", FAST).out
    assert "verdict   won; " in out
    assert "eager warm" in out


def test_a_failure_is_explained_with_its_message(run: Run, machine: Machine) -> None:
    machine.tune(
        sample.trial(
            chosen=OTHER, status=Status.HANG, message="no [answer]", timing=None, stage=Stage.SCREEN, race_id=""
        )
    )
    assert "verdict   failed at screening as hang: no [answer]\n" in run("explain", str(OTHER)).out


def test_each_length_is_explained(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    data = json.loads(run("explain", FAST, "--seq", "64,128", "--json").out)
    assert [found["fate"] for found in data] == ["pruned", "never tried"]
    assert "padded length" in data[0]["reason"]


def test_the_device_is_the_named_one_of_the_highest_power_cap(run: Run, machine: Machine) -> None:
    machine.tune(sample.trial(), sample.trial(device=replace(NVIDIA_H200, power_cap_watts=500)))
    (data,) = json.loads(run("explain", FAST, "--device", "NVIDIA H200", "--json").out)
    assert data["device"]["power_cap_watts"] == 700


def test_the_gpu_here_is_the_default(run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(NVIDIA_H200, power_cap_watts=500)
    machine.tune(sample.trial(device=here))
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(platforms, "current_device", lambda index=None: here)
    (data,) = json.loads(run("explain", FAST, "--json").out)
    assert (data["fate"], data["device"]["power_cap_watts"]) == ("won", 500)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("BLOCK_Q",), ("config='BLOCK_Q'", "NAME=VALUE")),
        (("BLOCK_Q=64",), ("has no BLOCK_K", "16, 32, 64, 128, 256")),
        (("foo=64",), ("config='foo=64' has foo, which is no parameter", "BLOCK_Q, BLOCK_K")),
        ((f"{FAST} foo=64",), ("has foo, which is no parameter", "BLOCK_Q, BLOCK_K")),
        ((FAST.replace("descriptor", "descripto"),), ("has loads=descripto; allowed: pointer, descriptor",)),
        ((FAST, "--device", "Voodoo 2"), ("device='Voodoo 2'", "none")),
        ((FAST, "--seq", "0"), ("--seq=0",)),
        ((FAST, "--tables", "/nonexistent"), ("tables='/nonexistent'", "not a folder")),
    ],
)
def test_a_wrong_question_is_refused(
    run: Run, machine: Machine, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    ran = run("explain", *arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert all(word in ran.err for word in words), ran.err
    assert not machine.home.exists()


def test_a_damaged_table_costs_its_own_rows_only(run: Run, machine: Machine) -> None:
    machine.ship(sample.trial())
    machine.tune(sample.trial())
    (table,) = machine.home.rglob("*.parquet")
    table.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match=f"{table.stem[:12]}...: damaged"):
        ran = run("explain", FAST)
    assert ran.code == 0
    assert "verdict   won" in ran.out
    assert "in the shipped winners" in ran.out


def test_a_value_that_only_a_row_outside_the_space_has_is_explained(run: Run, machine: Machine) -> None:
    machine.plant(sample.trial(), BLOCK_K=48)
    asked = str(sample.FAST).replace(f"BLOCK_K={sample.FAST['BLOCK_K']}", "BLOCK_K=48")
    assert run("explain", asked.replace("48", "47")).code == 2
    ran = run("explain", asked)
    assert ran.code == 0
    assert "verdict   pruned before compiling: BLOCK_K=48 is not one of" in ran.out


def test_what_lookup_prints_of_any_implementation_is_explained_as_it_stands(run: Run) -> None:
    """By the names of its parameters; and whether it is served among all, or of its implementation alone."""
    problem = ("--batch", "2", "--heads", "32", "--kv-heads", "8", "--seq", "3111", "--device", "NVIDIA H200")
    for among, prefix in (("ours", "default: "), ("gluon_hopper", "among gluon_hopper alone, default: ")):
        (served,) = json.loads(run("lookup", *problem, "--among", among, "--json").out)
        config = " ".join(f"{name}={value}" for name, value in served["config"].items() if value is not None)
        (data,) = json.loads(run("explain", config, *problem, "--json").out)
        assert data["implementation"] == served["implementation"]
        assert data["served"].startswith(prefix), data["served"]
    assert served["implementation"] == "gluon_hopper"
