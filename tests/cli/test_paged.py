"""Paged decode, and models that need it beside their prefill, through the commands: planned, searched, shown."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest

from autotune import dispatch, platforms
from autotune.device import NVIDIA_H200
from autotune.executor import Baselines, Race, select
from autotune.executor.replay import ReplayExecutor
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION
from autotune.shape import PagedShape
from autotune.space import Config
from autotune.table import write_shipped
from autotune.trial import Candidate, Stage, Trial
from autotune.tuning import shape_searches
from tests import sample
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]

SHAPE: Final = PagedShape(batch=64, heads=32, kv_heads=8, max_context=8192, head_dim=128)
CONFIGS: Final = 12  # recorded ones beside the default: replays answer the others as invalid


def row(shape: PagedShape, chosen: Config, **changes: Any) -> Trial:
    fields: dict[str, Any] = {"baseline": "", "baseline_timing": None, "tflops": 3.0, "gbps": 3000.0}
    identity = {"operation": IMPLEMENTATION.operation, "source_hash": IMPLEMENTATION.source_hash}
    return sample.trial(shape, chosen, **{**fields, **identity, **changes})


def sweep(shape: PagedShape = SHAPE) -> list[Trial]:
    """A few configs of a shape, screened and raced, the later the faster."""
    default = IMPLEMENTATION.space.default(shape, NVIDIA_H200)
    configs = list(dict.fromkeys([default, *islice(IMPLEMENTATION.space.configs(shape, NVIDIA_H200), CONFIGS)]))
    return [
        row(
            shape,
            chosen,
            number=number,
            stage=stage,
            race_id="" if stage is Stage.SCREEN else "race-1",
            timing=sample.timing(300.0 - 5 * number),
            default_timing=sample.timing(300.0),
            is_default=chosen == default,
        )
        for stage in (Stage.SCREEN, Stage.RACE)
        for number, chosen in enumerate(configs)
    ]


def ship(machine: Machine, shape: PagedShape = SHAPE) -> None:
    write_shipped(Path("nvidia_h200/paged_decode/sweeps/triton_paged.parquet"), sweep(shape), results=machine.results)


@pytest.mark.slow
def test_a_replayed_search_finds_saves_and_shows_a_winner(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    ship(machine)
    ran = run("search", "--operation", "paged_decode", "--trials", "3")
    assert (ran.code, ran.err) == (0, "")
    assert f"paged_decode: {SHAPE}\n" in ran.out
    assert " GB/s\n" in ran.out
    assert "TFLOP/s" not in ran.out
    (shown,) = json.loads(run("show", "--operation", "paged_decode", "--json").out)
    assert shown["shape"] == SHAPE.as_dict()
    table = run("show", "--operation", "paged_decode").out
    assert " GB/s " in table
    assert "why     exact: " in run("lookup", "--operation", "paged_decode").out
    for form in ("json", "csv", "triton-config"):
        assert run("export", "--operation", "paged_decode", "--format", form).code == 0


@pytest.mark.slow
def test_the_nearest_recorded_cache_is_tuned_and_said(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    ship(machine)
    out = run("search", "--operation", "paged_decode", "--context", "4096", "--trials", "3").out
    assert "not recorded: batch 64, 32/8 heads of 128, context 4096, " in out
    assert f"paged_decode: {SHAPE}\n" in out


@pytest.mark.slow
def test_a_cache_that_nothing_recorded_resembles_fails_and_says_what_was(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    nothing = run("search", "--operation", "paged_decode")
    assert (nothing.code, nothing.out) == (1, "")  # nothing of a recording that does not exist
    assert nothing.err == (
        "autotune: no sweep of paged_decode is recorded on NVIDIA H200: its search needs the GPU; "
        "`autotune search --operation paged_decode --dry-run` plans one, "
        "`autotune lookup --operation paged_decode` says what is served\n"
    )
    for command in ("search --operation paged_decode --dry-run", "lookup --operation paged_decode"):
        assert run(*command.split()).code == 0
    ship(machine)
    other = run("search", "--operation", "paged_decode", "--page-size", "64")
    assert other.code == 1
    assert f"recorded on NVIDIA H200: {SHAPE}." in other.err
    assert "no GPU here" not in other.out
    assert not machine.home.exists()


@pytest.mark.slow
def test_a_model_is_tuned_for_prefill_and_decode(run: Run, machine: Machine, confirmed: list[list[Candidate]]) -> None:
    machine.ship_sweep(1024)
    ship(machine)
    ran = run("search", "--model", "llama-3.1-8b", "--trials", "3", "--json")
    assert ran.code == 0
    first, *phases = ran.err.splitlines()[:3]
    assert first.startswith("llama-3.1-8b: prefill and decode; --operation names one of them, ")
    assert [line.split()[:2] for line in phases] == [
        ["prefill", "flash_attention:"],
        ["decode", "paged_decode:"],
    ]
    assert [found["operation"] for found in json.loads(ran.out)] == ["flash_attention", "paged_decode"]


def test_a_phase_that_was_not_recorded_fails_and_the_other_is_kept(
    run: Run, machine: Machine, confirmed: list[list[Candidate]]
) -> None:
    machine.ship_sweep(1024)
    ran = run("search", "--model", "llama-3.1-8b", "--trials", "3", "--json")
    assert ran.code == 1
    failed, searched = (ran.err.index(words) for words in ("failed    no sweep of paged_decode is", "no GPU here: "))
    assert failed < searched  # what cannot be answered is said before time is spent
    assert ran.err.endswith("autotune: 1 of 2 shapes failed: see the lines `failed`\n")
    assert [found["operation"] for found in json.loads(ran.out)] == ["flash_attention"]
    assert len(machine.kept()) > 0


@pytest.mark.slow
def test_a_dry_run_of_what_was_not_recorded_plans_it_as_on_the_gpu(run: Run, machine: Machine) -> None:
    machine.ship_sweep(64)
    command = ("search", "--operation", "paged_decode", "--context", "512,2048", "--dry-run")
    ran = run(*command)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("not recorded: a search of this needs the GPU; planned as on an NVIDIA H200\n") == 2
    assert "times come from a sweep" not in ran.out  # there is none
    assert "seconds, as a replay measures nothing" not in ran.out
    plans = json.loads(run(*command, "--json").out)
    assert [(plan["operation"], plan["shape"]["max_context"], plan["executor"]) for plan in plans] == [
        ("paged_decode", 512, "gpu"),
        ("paged_decode", 2048, "gpu"),
    ]
    assert all(plan["valid"] > 0 for plan in plans)
    assert not machine.home.exists()


@pytest.mark.slow
def test_a_dry_run_of_a_model_beside_a_gpu_plans_both_phases(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(platforms, "current_device", lambda index=None: NVIDIA_H200)
    monkeypatch.delattr(select, "GpuExecutor")
    plans = json.loads(run("search", "--model", "gpt-oss-120b", "--dry-run", "--json").out)
    assert [(plan["operation"], plan["implementation"], plan["shape"].get("sinks")) for plan in plans] == [
        ("flash_attention", "triton_masked", True),
        ("paged_decode", "triton", True),
    ]


def test_bench_tells_gigabytes_where_memory_is_the_limit(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FakeGPU(ReplayExecutor):
        name = "gpu"

        def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
            return super().race(candidates, seconds=seconds)

    monkeypatch.setattr("autotune.lab.bench.each_shape.open_gpu", lambda settings: FakeGPU(NVIDIA_H200, sweep()))
    ran = run("bench", "--operation", "paged_decode")
    assert (ran.code, ran.err) == (0, "")
    ours = ran.out.splitlines()[2]
    # 2 x 2 bytes of 64 x 8192 keys of 8 x 128, and of the queries and outputs of 64 x 32 x 128, in 300 us
    assert f"{(2**6 * 2**13 * 8 * 128 * 4 + 64 * 32 * 128 * 4) / 300e-6 / 1e9:.0f} GB/s" in ours
    (data,) = json.loads(run("bench", "--operation", "paged_decode", "--json").out)
    assert data["rows"][0]["gbps"] > data["rows"][0]["tflops"] > 0


def test_what_was_tuned_for_a_cache_seeds_its_neighbours(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(machine)
    fastest = sweep()[-1]
    machine.tune(row(SHAPE, fastest.config))
    asked: list[dict[str, list[Config]]] = []

    def note(*arguments: Any, neighbours: dict[str, list[Config]], **options: Any) -> Any:
        asked.append(neighbours)
        raise KeyboardInterrupt

    monkeypatch.setattr(shape_searches, "search", note)
    dispatch.reload()
    assert run("search", "--operation", "paged_decode", "--context", "16384").code == 130
    assert asked == [{"triton": [fastest.config]}]
