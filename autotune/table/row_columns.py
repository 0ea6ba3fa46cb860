"""Rows as columns of numbers: what equal values share, and the checks of values, for all rows of a table at once.

A merge of a million rows is as fast as this is. What is refused here, ``autotune.table.rows`` reads again row by row,
and says why.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from autotune.table.rows import TIMINGS
from autotune.table.schema import FIXED_COLUMNS, TableColumn, TableSchema, allows
from autotune.trial import Status

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NULL: Final = -1  # the code of null
_MANY_CODES: Final = 2**31  # above which codes of several columns are counted anew, long before they overflow


class Distinct(NamedTuple):
    """The distinct values of some columns: in which row each is first, and which of them each row has."""

    first_rows: Numbers
    of_row: Numbers


class RowColumns:
    """The columns of a table that has exactly those of a schema."""

    def __init__(self, schema: TableSchema, table: pa.Table) -> None:
        self.schema = schema
        # Texts of several files have a dictionary each; those that were not read from a file have none.
        table = table.unify_dictionaries().combine_chunks()
        self._arrays = {name: _coded(_whole(table[name])) for name in table.column_names}
        self._codes: dict[str, Numbers] = {}

    def array(self, name: str) -> pa.Array:
        """Return a column; texts with a dictionary."""
        return self._arrays[name]

    @property
    def count(self) -> int:
        return len(self._arrays["number"])

    def texts(self, name: str) -> list[str]:
        """Return the distinct texts of a column, of which ``codes`` are the places."""
        texts: list[str] = self.array(name).dictionary.to_pylist()
        return texts

    def codes(self, name: str) -> Numbers:
        """Return a number for each row, equal where the values of a column are, and ``_NULL`` where it is null."""
        if (codes := self._codes.get(name)) is None:
            array = self.array(name)
            coded = array if isinstance(array, pa.DictionaryArray) else array.dictionary_encode()
            codes = self._codes[name] = coded.indices.fill_null(_NULL).to_numpy(zero_copy_only=False).astype(np.int64)
        return codes

    def valid(self, name: str) -> Mask:
        """Return which rows have a value in a column."""
        mask: Mask = self.array(name).is_valid().to_numpy(zero_copy_only=False)
        return mask

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Return the values of a column that has no texts, moments in microseconds since 1970; 0 where it is null."""
        array = self.array(name)
        array = array if array.type == pa.float64() else array.cast(pa.int64())
        values: npt.NDArray[Any] = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
        return values

    def distinct(self, names: Iterable[str]) -> Distinct:
        """Return the distinct values of some columns together."""
        found, several = np.zeros(self.count, np.int64), 1
        for name in names:
            codes = self.codes(name)
            span = int(codes.max(initial=_NULL)) - _NULL + 1
            if span * several > _MANY_CODES:
                found = np.unique(found, return_inverse=True)[1].astype(np.int64)
                several = int(found.max(initial=0)) + 1
            found, several = found * span + (codes - _NULL), several * span
        _, first_rows, of_row = np.unique(found, return_index=True, return_inverse=True)
        return Distinct(first_rows, of_row)

    def python(self, names: Iterable[str], rows: Numbers) -> dict[str, Sequence[Any]]:
        """Return the values of some columns in some rows."""
        places = pa.array(rows)
        return {name: self.array(name).take(places).to_pylist() for name in names}

    def taken(self, rows: Numbers) -> pa.Table:
        """Return a table of some rows, in their order, as one that was never read."""
        places = pa.array(rows)
        arrays = [self.array(field.name).take(places).cast(field.type) for field in self.schema.arrow]
        return pa.Table.from_arrays(arrays, schema=self.schema.arrow)

    @cached_property
    def are_sound(self) -> bool:
        """True where ``check_rows`` refuses no row; what it refuses is false here."""
        owner = zip(("operation", "implementation"), self.schema.owner, strict=True)
        return (
            all(map(self._holds, FIXED_COLUMNS))
            and all(set(self.texts(name)) == {expected} for name, expected in owner)
            and all(map(self._are_timings, TIMINGS))
            and self._are_verdicts()
        )

    def _holds(self, column: TableColumn) -> bool:
        """Return True if a column may hold all its values; those that may be numbers are from a least to a most one."""
        array = self.array(column.name)
        if array.null_count and not column.nullable:
            return False
        if array.null_count == len(array) or pa.types.is_boolean(array.type):
            return True
        if isinstance(array, pa.DictionaryArray):
            return all(column.domain.allows(text) for text in self.texts(column.name))
        values = self.numbers(column.name)[self.valid(column.name)]
        return bool(allows(column, values.min().item()) and allows(column, values.max().item()))

    def _are_timings(self, names: Mapping[str, str]) -> bool:
        valid = [self.valid(name) for name in names]
        if not all(bool((each == valid[0]).all()) for each in valid):
            return False
        median, low, high = (self.numbers(name)[valid[0]] for name in list(names)[:3])
        return bool(((low <= median) & (median <= high)).all())

    def _are_verdicts(self) -> bool:
        baselines = self.texts("baseline")
        is_named = np.array([*map(bool, baselines), False])[self.codes("baseline")]
        ok = np.array([*(text == Status.OK for text in self.texts("status")), False])[self.codes("status")]
        error, has_error = self.numbers("error"), self.valid("error")
        has_limit = self.valid("error_limit")
        wrong = has_error & (np.isinf(error) | (has_limit & (error > self.numbers("error_limit"))))
        return not bool(
            (self.valid("baseline_median_us") & ~is_named).any() or (ok & (~self.valid("median_us") | wrong)).any()
        )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.array([], column.type)


def _coded(array: pa.Array) -> pa.Array:
    return array.dictionary_encode() if pa.types.is_string(array.type) else array
