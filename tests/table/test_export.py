"""Exports hold what was exported, and carry no code but what was meant."""

import csv
import io
import json
import unicodedata
from datetime import UTC
from typing import Any

import pytest
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import TableError, UnknownNameError, UsageError
from autotune.registry import get_implementation
from autotune.space import Config
from autotune.table import export
from autotune.table.rows import to_row
from autotune.table.schema import table_schema
from autotune.trial import Status, Trial
from tests.table import sample


def _configs(source: str) -> list[triton.Config]:
    scope: dict[str, Any] = {}
    exec(compile(source, "exported", "exec"), scope)
    found: list[triton.Config] = scope["CONFIGS"]
    return found


@settings(max_examples=25, deadline=None)
@given(st.lists(sample.trials(), min_size=1, max_size=3))
def test_json_and_csv_hold_every_value(trials: list[Trial]) -> None:
    finite = [trial for trial in trials if trial.outcome.error != float("inf")] or [sample.trial()]
    schema = table_schema(get_implementation(sample.NAME, "triton"))
    expected = [to_row(schema.implementation.space.parameters, trial) for trial in finite]
    for row, trial in zip(expected, finite, strict=True):
        row["started_at"] = trial.started_at.astimezone(UTC).isoformat()
    document = json.loads(export(finite, "json"))
    assert document == {**schema.metadata, "rows": expected}
    cells = list(csv.DictReader(io.StringIO(export(finite, "csv"), newline=""), strict=True))
    assert cells == [
        {name: "" if value is None else _cell_of(value) for name, value in row.items()} for row in document["rows"]
    ]


def _cell_of(value: object) -> str:
    """Return the text of a value with a mark for what is no character, behind a quote where it would be a formula."""
    if not isinstance(value, str):
        return str(value)
    shown = "".join("?" if unicodedata.category(each)[0] in "CZ" and each != " " else each for each in value)
    return f"'{shown}" if value and value[0] in "=+-@\t\r" else shown


def test_json_and_csv_have_the_columns_of_the_table() -> None:
    (row,) = json.loads(export([sample.trial(7)], "json"))["rows"]
    (cells,) = csv.DictReader(io.StringIO(export([sample.trial(7)], "csv")))
    assert list(row) == list(cells)
    assert (row["batch"], row["causal"], row["BLOCK"], row["kpack"], row["median_us"]) == (2, True, 32, None, 100.0)
    assert (cells["batch"], cells["causal"], cells["kpack"], cells["median_us"]) == ("2", "True", "", "100.0")
    assert row["started_at"] == cells["started_at"] == "2026-11-21T06:00:07+00:00"


def test_triton_configs_are_those_of_the_winners() -> None:
    trials = [
        sample.trial(config=sample.config(64, 8, "descriptor")),
        sample.trial(device=sample.MI300X, config=sample.config(16, 4, "pointer", kpack=2)),
    ]
    assert _configs(export(trials, "triton-config")) == [
        triton.Config({"BLOCK": 64, "loads": "descriptor"}, num_warps=8),
        triton.Config({"BLOCK": 16, "loads": "pointer", "kpack": 2}, num_warps=4),
    ]


def test_a_config_that_wins_twice_stands_once_below_both_comments() -> None:
    source = export([sample.trial(1), sample.trial(2, device=sample.CAPPED_H200)], "triton-config")
    assert len(_configs(source)) == 1
    comments = [line.strip() for line in source.splitlines() if line.startswith("    #")]
    assert comments == [
        f"# {sample.SHAPE}; NVIDIA H200 at 700 W; 100 us; gpu race race-1 of 2026-11-21, triton 3.6.0, "
        "source abababababab",
        f"# {sample.SHAPE}; NVIDIA H200 at 500 W; 100 us; gpu race race-1 of 2026-11-21, triton 3.6.0, "
        "source abababababab",
    ]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\f", "\v", "\u2028", "\x00"])
def test_text_of_a_table_never_becomes_code(end: str) -> None:
    trial = sample.trial(
        race_id=f"x{end}raise SystemExit  # ", config=Config(BLOCK=32, num_warps=4, loads="a'b", kpack=None)
    )
    assert _configs(export([trial], "triton-config")) == [triton.Config({"BLOCK": 32, "loads": "a'b"}, num_warps=4)]


def test_what_cannot_be_exported_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="allowed: csv, json, triton"):
        export([sample.trial()], "xml")
    with pytest.raises(UsageError, match="got no trials"):
        export([], "json")
    with pytest.raises(UsageError, match="flash_attention/triton, table_sample/foreign, table_sample/triton"):
        export(
            [sample.trial(), sample.trial(implementation="foreign"), sample.trial(operation="flash_attention")], "csv"
        )
    with pytest.raises(UsageError, match="has no time"):
        export([sample.trial(status=Status.HANG, timing=None)], "triton-config")
    with pytest.raises(TableError, match="BLOCK=5"):
        export([sample.trial(config=sample.config(block=5))], "json")
