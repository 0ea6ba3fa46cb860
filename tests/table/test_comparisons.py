"""Comparisons as Parquet, read back by pyarrow alone."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autotune.comparison import Comparison
from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.registry import get_operation
from autotune.report.comparison import comparison_data
from autotune.shape import PagedShape
from autotune.space import Config, Parameter
from autotune.table import write_comparisons
from autotune.table.comparisons import holds_comparisons
from autotune.table.parquet import encode
from autotune.table.schema import table_schema
from autotune.trial import Conditions
from tests.report import sample
from tests.report.test_comparison import COMPARISON

PAGED = PagedShape(batch=2, heads=4, kv_heads=2, max_context=64, head_dim=64)
DENSE_CONFIG = Config(BLOCK_Q=64, BLOCK_K=32, num_warps=4, num_stages=3, loads="descriptor")
PAGED_CONFIG = Config(schedule="split", NUM_SPLITS=4, num_warps=8)


def served_by(comparison: Comparison, config: Config) -> Comparison:
    """The comparison where the first system is ours, with this config."""
    first, *others = comparison.entries
    return replace(comparison, config=config, entries=(replace(first, config=config), *others))


def test_a_row_a_system_with_typed_columns(tmp_path: Path) -> None:
    paged = replace(COMPARISON, operation="paged_decode", shape=PAGED)
    data = [comparison_data(each) for each in (served_by(COMPARISON, DENSE_CONFIG), served_by(paged, PAGED_CONFIG))]
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
    assert (naive["operation"], naive["seq_q"], naive["max_context"]) == ("flash_attention", 64, None)
    assert (rows[-1]["max_context"], rows[-1]["seq_kv"], rows[-1]["median_us"]) == (64, None, None)
    types = {field.name: field.type for field in table.schema}
    assert types["causal"] == pa.bool_()
    assert types["samples"] == types["window"] == pa.int64()
    assert types["message"] == types["dtype"] == pa.string()
    assert len(types) == len(table.schema)


def test_a_config_has_a_column_a_parameter_as_in_a_table_of_trials(tmp_path: Path) -> None:
    paged = replace(COMPARISON, operation="paged_decode", shape=PAGED)
    data = [comparison_data(each) for each in (served_by(COMPARISON, DENSE_CONFIG), served_by(paged, PAGED_CONFIG))]
    path = tmp_path / "bench.parquet"
    write_comparisons(path, data)
    table = pq.read_table(path)
    rows = table.to_pylist()
    for name in ("flash_attention", "paged_decode"):
        operation = get_operation(name)
        trials = table_schema(operation).arrow
        for parameter in operation.space.parameters:
            assert table.schema.field(parameter.name).type == trials.field(parameter.name).type
    dense, paged_row = rows[0], rows[len(COMPARISON.entries)]
    assert {name: dense[name] for name in DENSE_CONFIG} == dict(DENSE_CONFIG)
    assert {name: paged_row[name] for name in PAGED_CONFIG} == dict(PAGED_CONFIG)
    assert (dense["NUM_SPLITS"], paged_row["BLOCK_Q"]) == (None, None)
    parameters = {*DENSE_CONFIG, *PAGED_CONFIG}
    assert all(row[name] is None for row in rows[1 : len(COMPARISON.entries)] for name in parameters)  # not of ours


def test_device_conditions_and_time_are_columns_as_in_a_table_of_trials(tmp_path: Path) -> None:
    started_at = datetime(2026, 11, 21, 6, 30, 0, 250, tzinfo=UTC)
    conditions = Conditions(1500, 2619, 61, throttle_reasons="power, thermal", contended=True)
    on_gpu = replace(COMPARISON, gpu=NVIDIA_H200, conditions=conditions, started_at=started_at)
    on_cpu = replace(COMPARISON, device="AMD EPYC, 2 cores", started_at=started_at)
    path = tmp_path / "bench.parquet"
    write_comparisons(path, [comparison_data(on_gpu), comparison_data(on_cpu)])
    table = pq.read_table(path)
    of_device = {"device_name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132, "memory_mib": 143771}
    of_race = {"sm_clock_mhz": 1500, "memory_clock_mhz": 2619, "temperature_c": 61, "contended": True}
    wanted = {**of_device, "power_cap_watts": 700, **of_race, "throttle_reasons": "power, thermal"}
    rows = table.to_pylist()
    for row in rows[: len(COMPARISON.entries)]:
        assert {name: row[name] for name in wanted} == wanted
    for row in rows[len(COMPARISON.entries) :]:
        assert row["device_name"] == "AMD EPYC, 2 cores"
        assert all(row[name] is None for name in wanted if name != "device_name")
    assert {row["started_at"] for row in rows} == {started_at}
    trials = table_schema(get_operation("flash_attention")).arrow
    shared = ("operation", *wanted, "started_at", "policy_mode", "triton_version", "seq_q", "median_us", "error")
    assert all(table.schema.field(name).type == trials.field(name).type for name in shared)
    assert "device" not in table.schema.names


def test_threads_are_those_of_a_processor(tmp_path: Path) -> None:
    path = tmp_path / "bench.parquet"
    write_comparisons(path, [comparison_data(replace(COMPARISON, threads=2)), comparison_data(COMPARISON)])
    table = pq.read_table(path)
    count = len(COMPARISON.entries)
    assert table.schema.field("threads").type == pa.int64()
    assert table.column("threads").to_pylist() == [2] * count + [None] * count


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "bench.parquet"
    write_comparisons(path, [comparison_data(COMPARISON)])
    data = path.read_bytes()
    assert pq.read_metadata(path).metadata == {b"autotune.comparison_version": b"1"}
    assert holds_comparisons(data)
    assert not holds_comparisons(data[:-1])
    assert not holds_comparisons(b"")
    pq.write_table(pa.table({"name": ["naive"]}), path)
    assert not holds_comparisons(path.read_bytes())
    assert not holds_comparisons(encode([sample.trial()]))


def test_columns_that_differ_by_operation_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text where the other operation has numbers, and a parameter that is named as what every comparison has."""
    flash = get_operation("flash_attention")
    other = replace(flash, name="other", space=replace(flash.space, parameters=(Parameter("BLOCK_Q", ("a", "b")),)))
    known = {"flash_attention": flash, "other": other}
    monkeypatch.setattr("autotune.table.comparisons.get_operation", known.__getitem__)
    data = [comparison_data(each) for each in (COMPARISON, replace(COMPARISON, operation="other"))]
    with pytest.raises(TableError, match="operation='other': BLOCK_Q is string, and int64 before"):
        write_comparisons(tmp_path / "bench.parquet", data)
    known["other"] = replace(other, space=replace(flash.space, parameters=(Parameter("ratio", (1, 2)),)))
    with pytest.raises(TableError, match="more than one column of the comparison is named ratio"):
        write_comparisons(tmp_path / "bench.parquet", data[1:])
    assert list(tmp_path.iterdir()) == []


def test_what_fits_no_column_is_refused(tmp_path: Path) -> None:
    for column, value in (("error", "small"), ("config", {"BLOCK_Q": "64 or so"})):
        data = comparison_data(COMPARISON)
        data["rows"][0][column] = value
        with pytest.raises(TableError, match=r"bench\.parquet"):
            write_comparisons(tmp_path / "bench.parquet", [data])
    assert list(tmp_path.iterdir()) == []
