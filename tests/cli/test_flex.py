"""``--operation flex_attention``: planned anywhere, searched on a GPU alone, served where its name is given."""

import json
from collections.abc import Callable

from autotune.search_spaces.flex_attention import OPERATION
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]
FLEX = ("--operation", "flex_attention", "--seq", "1024")


def test_a_search_is_planned_without_a_gpu(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)  # of flash attention: what there is to replay
    ran = run("search", *FLEX, "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert "not recorded: a search of this needs the GPU; planned as on an NVIDIA H200" in ran.out
    assert "default   BLOCK_M=128 BLOCK_N=64 num_warps=8 num_stages=3" in ran.out
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
