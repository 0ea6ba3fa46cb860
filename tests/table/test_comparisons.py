"""Comparisons as Parquet, read back by pyarrow alone."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autotune.errors import TableError
from autotune.report.comparison import comparison_data
from autotune.shape import PagedShape
from autotune.table import write_comparisons
from tests.report.test_comparison import COMPARISON

PAGED = PagedShape(batch=2, heads=4, kv_heads=2, max_context=64, head_dim=64)


def test_a_row_a_system_with_typed_columns(tmp_path: Path) -> None:
    data = [
        comparison_data(each)
        for each in (COMPARISON, replace(COMPARISON, operation="paged_decode", shape=PAGED, config=None))
    ]
    path = tmp_path / "bench.parquet"
    write_comparisons(path, data)
    table = pq.read_table(path)
    assert table.num_rows == 2 * len(COMPARISON.entries)
    rows = table.to_pylist()
    naive = rows[1]
    assert (naive["name"], naive["median_us"], naive["ratio"], naive["extra_bytes"]) == (
        "naive",
        2000.0,
        20.0,
        300 * 2**20,
    )
    assert (naive["operation"], naive["seq_q"], naive["max_context"], naive["config"]) == (
        "flash_attention",
        64,
        None,
        "BLOCK_Q=64",
    )
    assert (rows[-1]["max_context"], rows[-1]["seq_kv"], rows[-1]["median_us"], rows[-1]["config"]) == (
        64,
        None,
        None,
        None,
    )
    types = {field.name: field.type for field in table.schema}
    assert types["causal"] == pa.bool_()
    assert types["samples"] == types["window"] == pa.int64()
    assert types["message"] == types["dtype"] == pa.string()


def test_what_fits_no_column_is_refused(tmp_path: Path) -> None:
    data = comparison_data(COMPARISON)
    data["rows"][0]["error"] = "small"
    with pytest.raises(TableError, match=r"bench\.parquet"):
        write_comparisons(tmp_path / "bench.parquet", [data])
    assert list(tmp_path.iterdir()) == []
