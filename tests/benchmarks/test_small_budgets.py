"""The benchmark of small budgets reads what the command prints, and says what missed."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest

from autotune.executor import Race
from autotune.registry import get_operation
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Status, Timing
from benchmarks import small_budgets
from benchmarks.live import processes
from benchmarks.small_budgets import (
    SHAPES,
    JudgedSearch,
    Searched,
    judge,
    measure,
    measure_kept,
    parse,
    parse_seeds,
    run_search,
)

FAST, SLOW = (
    Config(
        BLOCK_Q=q,
        BLOCK_K=64,
        num_warps=4,
        num_stages=3,
        loads="descriptor",
        waves_per_eu=None,
        matrix_instr_nonkdim=None,
        kpack=None,
    )
    for q in (64, 128)
)
MEDIANS = {FAST: 100.0, SLOW: 107.0}
SHAPE = {"batch": 1, "heads": 16, "seq_q": 1024, "head_dim": 128}


def searched(config: Config = FAST, *, seconds: float = 16.0, first: float | None = 4.0, seed: int = 0) -> Searched:
    stages = {} if first is None else {"first_measured": first}
    return Searched(seed, seconds, stages, Candidate("triton", config), 30, SHAPE, "flash_attention")


class FakeExecutor:
    """Races by what each config takes."""

    raced: list[list[Config]]

    def open(self, operation: object, shape: object) -> None:
        assert (operation, shape) == (
            get_operation("flash_attention"),
            get_operation("flash_attention").shape_class(**SHAPE),
        )

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: str) -> Race:
        self.raced.append([each.config for each in candidates])
        times = [MEDIANS[each.config] for each in candidates]
        return Race(
            tuple(
                Outcome(candidate=each, status=Status.OK, timing=Timing(time, time, time, 15))
                for each, time in zip(candidates, times, strict=True)
            )
        )

    def close(self) -> None:
        pass


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[list[Config]]:
    FakeExecutor.raced = []
    monkeypatch.setattr(small_budgets, "GpuExecutor", FakeExecutor)
    return FakeExecutor.raced


def test_a_winner_is_judged_by_the_fastest_of_one_race(races: list[list[Config]]) -> None:
    found = judge("x", [searched(FAST), searched(SLOW, seed=1), searched(SLOW, seed=2)], [])
    assert [each.ratio for each in found] == [1.0, 1.07, 1.07]
    assert races == [[FAST, SLOW]]
    assert [each.ratio for each in judge("x", [searched(SLOW)], [searched(FAST)])] == [1.07]


def test_searches_that_agree_need_no_race(races: list[list[Config]]) -> None:
    assert [each.ratio for each in judge("x", [searched()], [searched()])] == [1.0]
    assert races == []


@pytest.mark.parametrize(
    ("found", "ratio", "misses"),
    [
        (searched(), 1.05, []),
        (searched(seconds=18.1), 1.0, ["end"]),
        (searched(first=5.1), 1.0, ["first"]),
        (searched(first=None), 1.0, ["first"]),
        (searched(), 1.06, ["winner"]),
        (searched(seconds=30.0), math.inf, ["end", "winner"]),
    ],
)
def test_what_is_beyond_its_limit_is_named(found: Searched, ratio: float, misses: list[str]) -> None:
    assert JudgedSearch("x", found, ratio).misses(15.0, 0.05) == misses


Run = tuple[tuple[str, ...], dict[str, str]]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Let each command find the slow config where its arguments name a budget of 15 s and seed 3, and record it."""
    begun: list[Run] = []

    def run(module: str, *arguments: str, seconds: float, environment: dict[str, str]) -> processes.Finished:
        begun.append((arguments, environment))
        config = SLOW if {"--budget=15", "--seed=3"} <= set(arguments) else FAST
        row = {
            "implementation": "triton",
            "config": {name: value for name, value in config.items() if value is not None},
            "device": {"name": "NVIDIA H200"},
            "toolchain": {"triton": "3.6.0"},
        }
        found: dict[str, Any] = {"operation": "flash_attention", "winner": row, "stages": {"first_measured": 4.5}}
        found |= {"seconds": 14.0, "measured": 30, "shape": SHAPE}
        return processes.Finished(module, 0, 15.5, json.dumps([found]), "")

    monkeypatch.setattr(processes, "run", run)
    return begun


def test_the_longer_search_goes_on_from_the_short_one(
    runs: list[Run], races: list[list[Config]], tmp_path: Path
) -> None:
    (judged,) = measure("long, full, D 128", tmp_path, budget=15.0, long=40.0, seeds=[3])
    assert judged == JudgedSearch("long, full, D 128", judged.searched, 1.07)
    assert judged.searched.stages == {"first_measured": 4.5, "searched": 14.0}
    (short, where), (long, again) = runs
    assert short == ("search", *SHAPES["long, full, D 128"], "--budget=15", "--seed=3", "--json")
    assert long == ("search", *SHAPES["long, full, D 128"], "--budget=40", "--seed=3", "--json")
    assert where == again
    assert set(where) == {"TRITON_CACHE_DIR", "AUTOTUNE_HOME"}


def test_searches_are_kept_and_continued(runs: list[Run], races: list[list[Config]], tmp_path: Path) -> None:
    def judged(seeds: list[int], deadline: float = math.inf) -> list[tuple[int, float]]:
        found = measure_kept("long, full, D 128", tmp_path, budget=15.0, seeds=seeds, deadline=deadline)
        return [(each.searched.seed, each.ratio) for each in found]

    assert judged([3]) == [(3, 1.0)]
    assert judged([3, 4], deadline=0.0) == [(3, 1.0)]  # no time is left for another
    assert judged([3, 4]) == [(3, 1.07), (4, 1.0)]
    assert [arguments[-2] for arguments, _ in runs] == ["--seed=3", "--seed=4"]


def test_searches_of_other_sources_are_not_judged_together(
    runs: list[Run], races: list[list[Config]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_kept("long, full, D 128", tmp_path, budget=15.0, seeds=[3])
    monkeypatch.setattr(small_budgets, "sources_of", lambda output: ["changed"])
    with pytest.raises(SystemExit, match="keeps searches of several GPUs, Tritons or sources"):
        measure_kept("long, full, D 128", tmp_path, budget=15.0, seeds=[3, 4, 5])
    assert [arguments[-2] for arguments, _ in runs] == ["--seed=3", "--seed=4"]  # and none with another seed


def test_a_search_that_failed_is_an_error_with_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = processes.Finished("autotune", 1, 3.0, "", "no winner")
    monkeypatch.setattr(processes, "run", lambda *arguments, **options: failed)
    with pytest.raises(RuntimeError, match="no winner"):
        run_search("long, full, D 128", tmp_path, budget=15.0, seed=0)
    with pytest.raises(RuntimeError, match="no winner"):
        measure_kept("long, full, D 128", tmp_path, budget=15.0, seeds=[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--store", "x"], ["--minutes", "3"]])
def test_only_short_searches_are_kept(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert "alone" in capsys.readouterr().err


def test_there_are_eight_shapes_and_seeds_are_ranges() -> None:
    assert len(SHAPES) == 8
    assert (parse_seeds("3"), parse_seeds("0-2")) == ([3], [0, 1, 2])
    with pytest.raises(argparse.ArgumentTypeError, match="'x' is not allowed"):
        parse_seeds("x")
    with pytest.raises(argparse.ArgumentTypeError, match="'9-0' is not allowed; expected a seed, or a range"):
        parse_seeds("9-0")
    assert parse(["--part", "2/4", "--only", "decode"]).part == (2, 4)


@pytest.mark.parametrize("arguments", SHAPES.values(), ids=SHAPES)
def test_every_shape_is_one_that_the_command_takes(arguments: tuple[str, ...]) -> None:
    names = {argument.partition("=")[0] for argument in arguments}
    known = {"--operation", "--batch", "--heads", "--kv-heads", "--seq", "--no-causal", "--head-dim", "--context"}
    assert names <= known
