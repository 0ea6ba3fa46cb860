"""Small tables that would unfold to much are refused by name, before any of their values is decoded."""

import io
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autotune.errors import TableError
from autotune.table import page_bounds
from autotune.table.page_bounds import require_bounded
from autotune.table.parquet import decode, encode
from autotune.trial import Status
from tests.table import sample

ROW = encode([sample.trial()])
SAID = {
    "autotune.schema_version": "2",
    "autotune.operation": sample.NAME,
    "autotune.implementation": "triton",
}
MEGABYTE = "x" * 2**20


def _rows(count: int, **columns: Any) -> pa.Table:
    """One row so many times, with other columns."""
    row = pq.read_table(io.BytesIO(ROW))
    arrays = [
        columns[each.name] if each.name in columns else pa.repeat(row[each.name][0], count) for each in row.schema
    ]
    return pa.Table.from_arrays(arrays, schema=row.schema)


def _written(table: pa.Table, said: dict[str, str] = SAID, row_group_size: int = 2**40, **options: Any) -> bytes:
    sink = io.BytesIO()
    options = {"compression": "zstd", "write_statistics": False, "store_schema": False} | options
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table, row_group_size=row_group_size)
        writer.add_key_value_metadata(said)
    return sink.getvalue()


def _texts(count: int, **options: Any) -> bytes:
    return _written(_rows(1, message=pa.array([MEGABYTE * count])), **options)


def _varint(value: int) -> bytes:
    groups: list[int] = []
    value *= 2  # zigzag
    while value >= 128:
        value, groups = value >> 7, [*groups, value & 127 | 128]
    return bytes([*groups, value])


def _saying_less(data: bytes) -> bytes:
    """Make the footer say that what is larger than a megabyte unfolds to nothing, in numbers of the same length."""
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    group = pq.read_metadata(io.BytesIO(data)).row_group(0)
    sizes = {
        group.total_byte_size,
        *(group.column(place).total_uncompressed_size for place in range(group.num_columns)),
    }
    end = data[footer:]
    for size in sizes:
        if size > 2**20:
            found = _varint(size)
            end = end.replace(found, bytes([*[128] * (len(found) - 1), 0]))
    return data[:footer] + end


def _wide() -> bytes:
    table = _rows(1)
    for number in range(300):
        table = table.append_column(f"extra{number}", pa.array([1]))
    return _written(table)


def _damaged_count() -> bytes:
    """Let the first page say that it has -1 values."""
    data = bytearray(ROW)
    where = data.index(bytes([0x1C, 0x15, 0x02]))  # of a data page, that it has one value
    data[where + 2] = 1
    return bytes(data)


HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "rows that repeat": ("values are more than", lambda: _written(_rows(120_000))),
    "shapes, each once": ("values are more than", lambda: _written(_rows(60_000, batch=pa.array(range(1, 60_001))))),
    "a text in a dictionary": ("decoded bytes", lambda: _texts(80)),
    "a text without a dictionary": ("decoded bytes", lambda: _texts(80, use_dictionary=False)),
    "a text, said to be short": ("decoded bytes", lambda: _saying_less(_texts(80))),
    "a text by lz4, said to be short": ("decoded bytes", lambda: _saying_less(_texts(80, compression="lz4"))),
    "texts in pages of the second kind": ("decoded bytes", lambda: _saying_less(_texts(80, data_page_version="2.0"))),
    "texts by their differences": (
        "encoded by their differences",
        lambda: _written(
            _rows(800, message=pa.repeat(MEGABYTE[:100_000], 800)),
            use_dictionary=False,
            column_encoding={"message": "DELTA_BYTE_ARRAY"},
        ),
    ),
    "row groups": ("footer|pages", lambda: _written(_rows(100), row_group_size=1)),
    "pages of one value": (
        "pages are more than",
        lambda: _written(_rows(300), data_page_size=1, write_batch_size=1, use_dictionary=False),
    ),
    "columns": ("columns are more than", _wide),
    "a footer of megabytes": ("bytes of footer", lambda: _written(_rows(1), {**SAID, "more": MEGABYTE})),
    "a negative number of values": ("damaged", _damaged_count),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_small_file_that_unfolds_is_refused_before_anything_is_decoded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason, make = HOSTILE[name]
    data = make()
    assert len(data) < 2_500_000
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", lambda *_, **__: pytest.fail("it was decoded"))
    monkeypatch.setattr("pyarrow.parquet.read_metadata", lambda *_, **__: pytest.fail("its footer was parsed"))
    with pytest.raises(TableError, match=f"^hostile: .*({reason})"):
        decode(data, "hostile")


def test_rows_in_groups_and_pages_of_other_writers_are_read() -> None:
    rows = _rows(20, number=pa.array(range(20)))
    for options in (
        {"row_group_size": 7},
        {"data_page_version": "2.0"},
        {"write_statistics": True},
        {"data_page_size": 1},
        {"use_dictionary": False},
        {"compression": "none"},
    ):
        assert len(decode(_written(rows, **options), "table").trials) == 20, options


def test_trials_that_all_failed_alike_take_a_byte_for_nine_values_and_are_read() -> None:
    """The least that real rows take, beside which the limit stands."""
    failed = {"status": Status.COMPILE_ERROR, "timing": None}
    data = encode([sample.trial(number, **failed) for number in range(2000)])
    assert len(decode(data, "table").trials) == 2000


def test_no_damaged_footer_ends_the_process() -> None:
    """Without the metadata of a column, pyarrow's accessors abort."""
    footer = len(ROW) - 8 - int.from_bytes(ROW[-8:-4], "little")
    for place in range(footer, len(ROW), 89):
        data = bytearray(ROW)
        data[place] ^= 0x10
        try:
            decode(bytes(data), "table")
        except TableError:
            continue


def test_usual_structs_are_read_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick patterns read of a footer the same as its fields one by one, and damage is found either way."""
    data = encode([sample.trial(number, timing=sample.timing(100.0 + number)) for number in range(50)])
    usual = [_bounds(data)]
    flips = range(len(data) - int.from_bytes(data[-8:-4], "little"), len(data) - 8, 7)
    usual += [_bounds(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]) for place in flips]
    never = re.compile(rb"(?!)")
    for name in ("_USUAL_CHUNK", "_USUAL_ELEMENT", "_USUAL_PAGE"):
        assert getattr(page_bounds, name).search(data) is not None
        monkeypatch.setattr(page_bounds, name, never)
    slow = [_bounds(data)]
    slow += [_bounds(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]) for place in flips]
    assert usual == slow


def _bounds(data: bytes) -> str:
    try:
        require_bounded(data, "table")
    except TableError as error:
        return str(error)
    return ""
