"""Rows judged as columns: what is sound, keyed and encoded all at once is what it is row by row."""

import dataclasses
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import TableError
from autotune.table.bulk import Bulk, read_bulk
from autotune.table.order import in_order
from autotune.table.parquet import encode, to_arrow
from autotune.table.row_columns import RowColumns
from autotune.table.row_keys import keys_of_columns, keys_of_trials
from autotune.table.rows import check_rows, to_columns
from autotune.table.schema import FIXED_COLUMNS, TableColumn, TableSchema, schema_named
from autotune.table.store import Store
from autotune.trial import Conditions, Trial
from tests.table import sample

TRIALS = [
    sample.trial(1),
    sample.trial(2, conditions=Conditions(contended=True), baseline="sdpa", baseline_timing=sample.timing(120.0)),
    sample.trial(3, error=0.5, error_limit=1.0),
]
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [None, -1, 0, 1, 2**63 - 1],
    pa.float64(): [None, -1.0, -0.0, 0.75, 5.0, 100.0, float("inf"), float("nan")],
    pa.string(): [None, "", "x", "ok", "hang", "replay", "x" * 5000],
    pa.bool_(): [None, True, False],
    pa.timestamp("us", tz="UTC"): [None, -1, 0, 2**62],
}


def _schema() -> TableSchema:
    schema = schema_named(sample.NAME, "triton")
    assert isinstance(schema, TableSchema)
    return schema


def _read(columns: dict[str, list[Any]]) -> RowColumns:
    """Hold columns as a file may, whatever its schema says of nulls."""
    fields = pa.schema([field.with_nullable(True) for field in _schema().arrow])
    return RowColumns(_schema(), to_arrow(columns, fields))


def _is_refused(columns: dict[str, list[Any]]) -> bool:
    try:
        check_rows(_schema(), columns, "rows")
    except TableError:
        return True
    return False


@pytest.mark.parametrize("column", FIXED_COLUMNS, ids=[column.name for column in FIXED_COLUMNS])
def test_what_is_refused_row_by_row_is_not_sound(column: TableColumn) -> None:
    assert _read(to_columns(_schema(), TRIALS, "rows")[0]).are_sound
    for row in range(len(TRIALS)):
        for value in VALUES[column.domain.type]:
            columns = to_columns(_schema(), TRIALS, "rows")[0]
            columns[column.name][row] = value
            assert _read(columns).are_sound is not _is_refused(columns), (row, value)


@settings(max_examples=30, deadline=None)
@given(st.lists(sample.trials(), min_size=1, max_size=3))
def test_all_trials_that_a_table_may_hold_are_sound_and_keyed(trials: list[Trial]) -> None:
    columns = _read(to_columns(_schema(), trials, "rows")[0])
    assert columns.are_sound
    keyed = keys_of_columns(columns)
    assert keyed is not None
    assert [keyed.slugs[place] for place in keyed.slug_of_row] == [trial.device.slug for trial in trials]
    assert len(set(keyed.keys)) == len(set(trials))


def test_rows_outside_of_the_space_have_no_keys() -> None:
    for name, value in {"BLOCK": 17, "loads": "unknown", "heads": 7}.items():
        columns = to_columns(_schema(), TRIALS, "rows")[0]
        columns[name][1] = value
        assert keys_of_columns(_read(columns)) is None, name


def test_zeros_of_both_signs_are_one_value_and_null_is_none() -> None:
    rows = [dataclasses.replace(TRIALS[2], tflops=value) for value in (0.0, -0.0, None, 1.0)]
    keys = keys_of_trials(_schema(), rows)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_a_batch_of_several_files_is_what_its_trials_are_encoded_as(tmp_path: Any) -> None:
    store, found = Store(tmp_path), Bulk()
    paths = [path for trials in (TRIALS[1:], TRIALS[:2], TRIALS) for path in store.append(trials)]
    found = read_bulk(paths)
    (batch,) = found.batches
    assert batch.data == encode(in_order(TRIALS))
    assert batch.keys == keys_of_trials(_schema(), in_order(TRIALS))
    assert (found.files, found.rows) == (3, 7)
