"""Regret: random orders by enumerating them all, searches by hand."""

import itertools
import math
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from autotune.device import NVIDIA_H200
from autotune.lab.report.detail import QUANTILES, elapsed_seconds, random_order, regret
from autotune.lab.report.screening import group
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.trial import Outcome, Stage, Status, Trial
from tests import sample

SHAPE = sample.shape(1024)


@pytest.mark.parametrize(
    "values",
    [[0.0], [0.3, 0.0], [0.5, 0.0, 0.1, 0.1, 2.0], [0.0, math.inf, 0.2, math.inf, 0.7, 0.4], [math.inf, 0.0]],
    ids=str,
)
def test_percentiles_of_random_orders_are_those_of_all_orders(values: list[float]) -> None:
    curve = random_order(np.array(values))
    assert curve.effort[0] == 1
    assert curve.effort[-1] == len(values)
    for drawn, *found in zip(curve.effort, curve.low, curve.median, curve.high, strict=True):
        best = sorted(min(order) for order in itertools.combinations(values, int(drawn)))
        for quantile, value in zip(QUANTILES, found, strict=True):
            assert value == best[math.ceil(quantile * len(best) - 1e-9) - 1], (drawn, quantile)


def test_random_orders_of_thousands_are_told_in_few_points() -> None:
    curve = random_order(np.linspace(0.0, 1.0, 20_001))
    assert len(curve.effort) < 70
    assert curve.median[-1] == curve.high[-1] == 0.0
    half = curve.effort.index(min(curve.effort, key=lambda n: abs(n - 100)))
    assert curve.median[half] == pytest.approx(1 - 0.5 ** (1 / curve.effort[half]), rel=0.02)


def screened(number: int, microseconds: float | None, status: Status = Status.OK, **changes: object) -> Trial:
    config = list(IMPLEMENTATION.space.configs(SHAPE, NVIDIA_H200))[number]
    timing = None if microseconds is None else sample.timing(microseconds)
    trial = sample.trial(
        SHAPE,
        config,
        stage=Stage.SCREEN,
        race_id="",
        status=status,
        timing=timing,
        number=number,
        started_at=sample.START + timedelta(seconds=10 * number),
        compile_seconds=2.0,
        judge_seconds=1.0,
    )
    return replace(trial, **changes)  # type: ignore[arg-type]


SEARCH = [
    screened(1, None, Status.COMPILE_ERROR),
    screened(2, 400.0),
    screened(3, 100.0, Status.SLOW),  # stopped early: no candidate
    screened(4, 500.0),
    screened(5, 200.0),
]


def test_a_search_is_told_in_the_order_of_its_trials() -> None:
    (problem,) = group(reversed(SEARCH))
    found = regret(problem)
    assert found is not None
    assert not found.is_random
    assert found.by_trials.effort == (1, 2, 3, 4, 5)
    assert found.by_trials.median == (math.inf, 1.0, 1.0, 1.0, 0.0)
    assert found.by_seconds.median == found.by_trials.median
    assert found.by_seconds.effort == (3, 13, 23, 33, 43)


def test_a_pause_between_two_runs_is_no_time_of_the_search() -> None:
    later = [replace(t, worker="host:2", started_at=t.started_at + timedelta(days=1)) for t in SEARCH[3:]]
    assert elapsed_seconds([*SEARCH[:3], *later]) == (3, 13, 23, 26, 36)


def test_a_replay_takes_what_its_recording_took() -> None:
    assert elapsed_seconds([replace(trial, executor="replay") for trial in SEARCH]) == (3, 6, 9, 12, 15)


def test_a_sweep_is_told_by_random_orders_at_the_mean_cost() -> None:
    rows = [
        replace(trial, outcome=replace(trial.outcome, compile_seconds=2.0, judge_seconds=1.0))
        for trial in sample.sweep(SHAPE)
    ]
    (problem,) = group(rows)
    found = regret(problem)
    assert found is not None
    assert found.is_random
    assert found.by_trials.effort[-1] == len(problem.trials)
    assert found.by_seconds.effort == tuple(3.0 * n for n in found.by_trials.effort)
    assert found.by_trials.median[-1] == 0.0
    assert regret(replace(problem, trials=problem.trials[:-1])) is not None
    assert not regret(replace(problem, trials=problem.trials[:-1])).is_random  # type: ignore[union-attr]


def test_a_config_that_was_tried_again_counts_where_it_came_last() -> None:
    again = replace(SEARCH[0], started_at=sample.START + timedelta(hours=1), outcome=screened(1, 150.0).outcome)
    (problem,) = group([*SEARCH, again])
    assert [trial.number for trial in problem.trials] == [2, 3, 4, 5, 1]
    assert problem.best is again


def test_nothing_is_told_of_one_time() -> None:
    (problem,) = group(SEARCH[:2])
    assert regret(problem) is None


def test_trials_that_failed_have_no_regret() -> None:
    outcome = Outcome(candidate=SEARCH[0].candidate, status=Status.HANG)
    (problem,) = group([replace(SEARCH[0], outcome=outcome)])
    assert problem.best is None
    assert regret(problem) is None
