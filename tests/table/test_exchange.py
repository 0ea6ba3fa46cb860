"""Exports come back: through JSON and T4 nothing is lost, and what is none is refused by name."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import TableError
from autotune.table import export, shipped_grid, shipped_sweeps, to_t4
from autotune.table.exchange import from_json
from autotune.trial import Stage, Status, Trial
from tests.table import sample


def through_json(trials: list[Trial]) -> list[Trial]:
    return from_json(export(trials, "json").encode(), "there").trials


def through_t4(trials: list[Trial]) -> list[Trial]:
    return from_json(json.dumps(to_t4(trials), allow_nan=False).encode(), "there").trials


@settings(max_examples=12, deadline=None)
@given(st.lists(sample.trials(), min_size=1, max_size=3))
def test_json_loses_nothing(trials: list[Trial]) -> None:
    assert through_json(trials) == trials


@settings(max_examples=12, deadline=None)
@given(sample.trials())
def test_t4_loses_nothing(trial: Trial) -> None:
    assert through_t4([trial]) == [trial]


def test_an_infinite_error_comes_back_through_strict_json() -> None:
    wrong = sample.trial(status=Status.WRONG_RESULT, timing=None, error=math.inf, error_limit=0.1)
    assert through_json([wrong]) == through_t4([wrong]) == [wrong]


@pytest.mark.parametrize("through", [through_json, through_t4])
def test_a_shipped_sweep_comes_back_whole(through: Callable[[list[Trial]], list[Trial]]) -> None:
    trials = min(shipped_sweeps("flash_attention"), key=lambda sweep: sweep.name).trials()
    assert {trial.stage for trial in trials} == set(Stage)
    assert through(trials) == trials


def test_a_shipped_grid_comes_back_whole() -> None:
    trials = shipped_grid("paged_prefill", implementation="triton")
    assert through_json(trials) == trials


def change(**values: Any) -> bytes:
    document = json.loads(export([sample.trial()], "json"))
    document["rows"][0].update(values)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff", "is not a table of this format: not JSON; expected what"),
        (b"[" * 100_000, "is not a table of this format: not JSON; expected what"),
        (b'{"rows":[' + b"{}," * 600_000 + b"{}]}", "up to 1200003 values are not allowed; expected 1000000"),
        (b"[]", "no trials there"),
        (b'{"rows": 1}', "no trials there"),
        (b'{"metadata": {"kernel": "other/tool"}, "results": []}', "no trials there"),
        (b'{"rows": []}', "names no autotune.operation"),
        (change(median_us=-1.0), "median_us=-1.0 is not allowed"),
        (change(median_us=math.nan), "median_us=nan is not allowed"),
        (change(median_us=[1]), "'median_us' is list"),
        (change(status="fine"), "status='fine' is not allowed"),
        (change(started_at="yesterday"), "started_at='yesterday' is no time with its zone"),
        (change(started_at="2026-11-21T06:00:00"), "is no time with its zone"),
        (change(operation="other"), "operation='other' is not allowed"),
        (change(error="inf"), "error='inf' is not allowed"),
        (change(**{"__import__('os')": 1}), "which no column holds"),
        (export([sample.trial()], "json").replace('"2"', '"7"', 1).encode(), "its metadata are"),
        (export([sample.trial()], "json").replace("table_sample", "unheard", 1).encode(), "unheard"),
    ],
)
def test_what_is_none_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(TableError, match=r"^there: ") as caught:
        from_json(data, "there")
    assert reason in str(caught.value)


def test_rows_of_another_space_are_outsiders() -> None:
    table = from_json(change(BLOCK=48), "there")
    assert (table.trials, [each.reason for each in table.outsiders]) == ([], ["BLOCK=48 is not one of (16, 32, 64)"])
