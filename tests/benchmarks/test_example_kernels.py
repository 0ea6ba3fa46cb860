"""The race of the examples: its problems are shapes of theirs, and what is not as wanted is told."""

import importlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.errors import AutotuneError
from benchmarks import example_kernels
from benchmarks.example_kernels import GRIDS, PEERS, PROBLEMS, ExampleRace, ExampleShape, measure, search

FINE = ExampleRace(
    "rmsnorm", "rows=8", "torch.compile", 1.0, search_seconds=30.0, configs=12, configs_a_second=9.0, rung="exact",
    ours_us=50.0, peer_us=51.0, difference=0.0,
)  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: f"{problem.example} {problem.fields}")
def test_each_problem_is_a_shape_of_its_example(problem: ExampleShape) -> None:
    kernel = getattr(importlib.import_module(f"examples.{problem.example}"), f"{problem.example}_kernel")
    shape = kernel.shape_class(**problem.sizes, dtype=problem.dtype)
    made = kernel.definition.make_inputs(shape, seed=0, device="meta")
    assert len(made.outputs) == 1
    config = kernel.configs[0]
    grid = GRIDS[problem.example]({**made.values, **config.kwargs})
    assert grid == kernel.launched._grid({**made.values, **config.kwargs})
    assert problem.example in PEERS


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"search_seconds": 41.0}, ["search took 41.0 s"]),
        ({"configs_a_second": 7.9}, ["7.9 configs a second"]),
        ({"configs_a_second": 2.0, "ours_us": 500.0, "peer_us": 500.0}, []),
        ({"rung": "default"}, ["served by the rung 'default'"]),
        ({"difference": math.nan}, ["outputs differ by nan"]),
        ({"peer_us": 49.0}, ["0.980 of torch.compile, wanted 1"]),
        ({"problem": "AutotuneError: no"}, ["AutotuneError: no"]),
    ],
)
def test_what_is_not_as_wanted_is_told(changes: dict[str, Any], told: list[str]) -> None:
    assert list(replace(FINE, **changes).beyond()) == told


def test_a_search_is_the_command_of_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Any] = []

    def run(command: list[str], home: Path, cache: Path) -> str:
        given.append((command, home, cache))
        return '[{"measured": 12, "stages": {"problem_opened": 2.0, "first_measured": 2.5, "screened": 4.0}}]'

    monkeypatch.setattr(example_kernels, "run_autotune", run)
    found = replace(FINE)
    search(PROBLEMS[0], tmp_path / "home", tmp_path / "cache", found)
    fields = "rows=8192,width=4096,dtype=bfloat16"
    command = ["search", "--kernel", "examples.rmsnorm:rmsnorm_kernel", "--shape", fields]
    assert given == [([*command, "--json"], tmp_path / "home", tmp_path / "cache")]
    assert (found.configs, found.configs_a_second) == (12, 6.0)


def test_a_search_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> str:
        raise AutotuneError("no GPU")

    monkeypatch.setattr(example_kernels, "run_autotune", fail)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert [each.problem for each in measure(PROBLEMS[:2], tmp_path)] == ["AutotuneError: no GPU"] * 2
