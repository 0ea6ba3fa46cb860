"""The metrics against small examples computed by hand, and replays that count evaluations rightly."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from autotune.shape import AttentionShape
from benchmarks.search_efficiency.kernel_tuner import cache_file
from benchmarks.search_efficiency.machine import Batches, Judged, simulate
from benchmarks.search_efficiency.metrics import (
    RandomSearch,
    best_so_far,
    bootstrap,
    evaluations,
    expected_best,
    pick_sweeps,
    regret,
)
from benchmarks.search_efficiency.recordings import Recording, load, split
from benchmarks.search_efficiency.samplers import OURS, open_source, replay
from benchmarks.search_efficiency.summary import regret_at_seconds
from benchmarks.search_efficiency.tasks import Task

TIMES = np.array([4.0, 1.0, math.nan, 2.0])  # the failure counts as 4
REPLAYED = 30  # evaluations: enough for a sampler to have left its start
MANY = np.array([*range(1, 41)], dtype=float)


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    return load()


def test_expected_best_is_the_mean_over_all_draws() -> None:
    # One draw: (4 + 1 + 4 + 2) / 4. Two: the six pairs have bests 1, 4, 2, 1, 1, 2. Three: 1 three times, then 2.
    assert expected_best(TIMES) == pytest.approx([2.75, 11 / 6, 5 / 4, 1.0])
    values = [3.0, 5.0, 5.0, 8.0, 13.0]
    for count, expected in enumerate(expected_best(np.array(values)), 1):
        assert expected == pytest.approx(np.mean([min(drawn) for drawn in itertools.combinations(values, count)]))


def test_regret_of_a_trace() -> None:
    best = best_so_far(TIMES, [2, 0, 3], 5)
    assert list(best) == [4.0, 4.0, 2.0, 2.0, 2.0]
    assert list(regret(TIMES, best)) == [3.0, 3.0, 1.0, 1.0, 1.0]
    assert list(best_so_far(TIMES, [], 2)) == [4.0, 4.0]


def test_random_budget_is_where_the_expected_best_passes_the_threshold() -> None:
    expected = expected_best(MANY)
    threshold = 20.5 - 0.95 * 19.5
    count = RandomSearch(MANY).budget
    assert expected[count - 1] <= threshold < expected[count - 2]


def test_p_score_of_an_oracle_is_one_and_of_random_search_is_zero() -> None:
    search, generator = RandomSearch(MANY), np.random.default_rng(0)
    assert search.p_score([0]) == 1.0
    scores = [search.p_score(list(generator.permutation(len(MANY)))) for _ in range(4000)]
    assert np.mean(scores) == pytest.approx(0, abs=4 * float(np.std(scores)) / math.sqrt(len(scores)))
    assert search.p_score([39, 38, 37]) < -1


def test_p_score_by_hand() -> None:
    # Median 2, optimum 1: the threshold 1.05 is passed with all four, so budgets are 1 to 3.
    assert RandomSearch(TIMES).budget == 3
    found = [2.0, 2.0, 1.0]
    baseline = [2.75, 11 / 6, 5 / 4]
    by_hand = np.mean([(b - f) / (b - 1) for b, f in zip(baseline, found, strict=True)])
    assert RandomSearch(TIMES).p_score([3, 0, 1]) == pytest.approx(by_hand)


def test_fractions_are_rounded_up() -> None:
    assert [evaluations(160, 0.05), evaluations(362, 0.05), evaluations(490, 0.10), evaluations(3, 0.05)] == [
        8,
        19,
        49,
        1,
    ]


def test_bootstrap_resamples_sweeps_and_seeds() -> None:
    constant = [np.array([1.0, 1.0]), np.array([3.0])]
    means = bootstrap(constant, pick_sweeps(2))
    assert set(means) == {1.0, 2.0, 3.0}
    varied = bootstrap([np.array([0.0, 1.0])], pick_sweeps(1))
    assert set(varied) == {0.0, 0.5, 1.0}


def test_both_halves_have_every_head_dim_and_mask(recordings: list[Recording]) -> None:
    families = [
        {(recording.shape.head_dim, recording.shape.causal) for recording in recordings if recording.half == half}
        for half in ("training", "held-out")
    ]
    assert families[0] == families[1]
    assert len(families[0]) == 6


def test_the_split_does_not_depend_on_order() -> None:
    shapes = {
        f"{length}": AttentionShape(batch=1, heads=8, seq_q=length, head_dim=64, dtype="bfloat16", causal=False)
        for length in (512, 1024, 2048, 4096)
    }
    assert split(shapes) == split(dict(reversed(shapes.items())))
    assert sorted(split(shapes).values()) == ["held-out", "held-out", "training", "training"]


def test_the_machine_compiles_in_parallel_and_judges_one_at_a_time(recordings: list[Recording]) -> None:
    recording = recordings[0]
    fastest = np.argsort(recording.compile_seconds + 1e9 * (recording.judge_seconds == 0))[:3]
    compiles, judges = recording.compile_seconds[fastest], recording.judge_seconds[fastest]
    trace = [int(index) for index in fastest]
    serial = simulate(recording, Batches([[index] for index in trace]), compilers=1, in_flight=1)
    assert [verdict.seconds for verdict in serial] == pytest.approx(np.cumsum(compiles + judges))
    parallel = simulate(recording, Batches([trace]), compilers=3, in_flight=3)
    finish = 0.0
    for verdict, compiled, judged in zip(parallel, compiles, judges, strict=True):
        finish = max(finish, compiled) + judged
        assert verdict.seconds == pytest.approx(finish)
    failed = int(np.flatnonzero(recording.judge_seconds == 0)[0])
    (verdict,) = simulate(recording, Batches([[failed]]), compilers=1, in_flight=1)
    assert verdict == Judged(recording.compile_seconds[failed], failed)


def test_regret_at_a_moment_is_that_of_the_verdicts_known(recordings: list[Recording]) -> None:
    recording = recordings[0]
    best, worst = int(np.nanargmin(recording.times_us)), int(np.nanargmax(recording.times_us))
    judged = [Judged(1.0, worst), Judged(5.0, best)]
    most = recording.times_us[worst] / recording.times_us[best] - 1
    assert [regret_at_seconds(recording, judged, second) for second in (0, 2, 5)] == pytest.approx([most, most, 0])


QUICK = ("gp", "random", "optuna-nsga2")  # the others take seconds


@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in (*OURS, "optuna-tpe", "optuna-nsga2")
    ],
)
def test_a_replay_never_asks_twice(recordings: list[Recording], sampler: str) -> None:
    recording = min(recordings, key=lambda recording: recording.size)
    trace = replay(open_source(sampler, recording, seed=1), REPLAYED)
    assert len(trace) == len(set(trace)) == REPLAYED
    assert trace == replay(open_source(sampler, recording, seed=1), REPLAYED)
    assert trace[0] == recording.default or sampler.startswith("optuna-")


def test_a_repeated_ask_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="twice"):
        replay(Batches([[1], [1]]), 3)


def test_a_cache_file_keeps_the_order_and_the_failures(recordings: list[Recording]) -> None:
    recording = recordings[0]
    cache = cache_file(recording)
    entries = list(cache["cache"].values())
    assert len(entries) == recording.size
    for entry, outcome, time_us in zip(entries, recording.outcomes, recording.times_us, strict=True):
        assert entry["BLOCK_Q"] == outcome.config["BLOCK_Q"]
        assert cache["tune_params"]["loads"] == [0, 1]
        if math.isnan(time_us):
            assert entry["time"] in ("CompilationFailedConfig", "RuntimeFailedConfig")
        else:
            assert entry["time"] == pytest.approx(time_us / 1000)


@pytest.mark.parametrize("sampler", ["random", pytest.param("optuna-nsga2", marks=pytest.mark.slow)])
def test_kept_runs_are_read_and_not_run_again(
    sampler: str, recordings: list[Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smallest = min(recordings, key=lambda recording: recording.size)
    task = Task(sampler, smallest.name, (0, 1), tmp_path)
    fresh = task.run_once(tmp_path)
    monkeypatch.setattr(Task, "run", lambda task: pytest.fail("it was run again"))
    assert task.run_once(tmp_path) == fresh
