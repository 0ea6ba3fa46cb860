"""Comparisons as Parquet, read back by pyarrow alone."""

import copy
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.registry import get_implementation
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.space import Config, Parameter
from autotune.table import write_comparisons
from autotune.table.comparisons import holds_comparisons
from autotune.table.parquet import encode
from autotune.table.schema import table_schema
from autotune.trial import Conditions, Policy, Timing, Toolchain
from tests.table import sample
from tests.table.growth import change_space

DENSE: Final = AttentionShape(batch=1, heads=2, seq_q=64, head_dim=64)
PAGED: Final = PagedShape(batch=2, heads=4, kv_heads=2, max_context=64, head_dim=64)
DENSE_CONFIG: Final = Config(BLOCK_Q=64, BLOCK_K=32, num_warps=4, num_stages=3, loads="descriptor")
FLEX_CONFIG: Final = Config(BLOCK_M=64, BLOCK_N=32, num_warps=4)
PAGED_CONFIG: Final = Config(schedule="split", NUM_SPLITS=4, num_warps=8)
SYSTEMS: Final = 4


def system(name: str, median: float | None, **changes: Any) -> dict[str, Any]:
    """A system of a comparison; without a time it did not run."""
    timing = None if median is None else asdict(Timing(median, 0.99 * median, 1.01 * median, 15))
    ratio = None if median is None else {"value": median / 100, "low": median / 101, "high": median / 99}
    measured = dict.fromkeys(("tflops", "gbps", "error", "error_limit", "extra_bytes", "config", "implementation"))
    return {
        "name": name,
        "timing": timing,
        "ratio": ratio,
        **measured,
        "message": "",
        "verified_on_hardware": True,
        **changes,
    }


def comparison(operation: str = "flash_attention", shape: Shape = DENSE, **changes: Any) -> dict[str, Any]:
    """A comparison as plain data, as ``bench`` makes it."""
    found = {
        "operation": operation,
        "shape": shape.as_dict(),
        "device": "NVIDIA H200",
        "threads": None,
        "gpu": None,
        "conditions": None,
        "started_at": None,
        "toolchain": asdict(Toolchain("0.1.0")),
        "policy": asdict(Policy()),
        "config": None,
        "reason": "tuned for this shape",
        "rows": [
            system("autotune", 100.0, error=0.001, error_limit=0.004, tflops=500.0),
            system("naive", 2000.0, extra_bytes=300 * 2**20),
            system("gaudi", 150.0, verified_on_hardware=False),
            system("cudnn", None, message="pip install cudnn"),
        ],
    }
    return {**found, **changes}


def served_by(
    found: Mapping[str, Any], config: Mapping[str, Any], implementation: str = "triton", place: int = 0
) -> dict[str, Any]:
    """The comparison where a system is an implementation with this config."""
    changed = copy.deepcopy(dict(found))
    changed["rows"][place] |= {"config": dict(config), "implementation": implementation}
    return changed


def both() -> list[dict[str, Any]]:
    """Comparisons of two operations, of three implementations of ours and a foreign one."""
    dense = served_by(served_by(comparison(), DENSE_CONFIG), FLEX_CONFIG, "flex", place=2)
    return [dense, served_by(comparison("paged_decode", PAGED), PAGED_CONFIG)]


def test_a_row_a_system_with_typed_columns(tmp_path: Path) -> None:
    path = tmp_path / "bench.parquet"
    write_comparisons(path, both())
    table = pq.read_table(path)
    assert table.num_rows == 2 * SYSTEMS
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
    path = tmp_path / "bench.parquet"
    write_comparisons(path, both())
    table = pq.read_table(path)
    rows = table.to_pylist()
    for owner in (("flash_attention", "triton"), ("flash_attention", "flex"), ("paged_decode", "triton")):
        implementation = get_implementation(*owner)
        trials = table_schema(implementation).arrow
        for parameter in implementation.space.parameters:
            assert table.schema.field(parameter.name).type == trials.field(parameter.name).type
    dense, flex, paged_row = rows[0], rows[2], rows[SYSTEMS]
    owners = [(row["operation"], row["implementation"]) for row in rows]
    assert owners[:3] == [("flash_attention", "triton"), ("flash_attention", None), ("flash_attention", "flex")]
    assert owners[SYSTEMS] == ("paged_decode", "triton")
    assert {name: dense[name] for name in DENSE_CONFIG} == dict(DENSE_CONFIG)
    assert {name: flex[name] for name in FLEX_CONFIG} == dict(FLEX_CONFIG)
    assert {name: paged_row[name] for name in PAGED_CONFIG} == dict(PAGED_CONFIG)
    assert (dense["NUM_SPLITS"], paged_row["BLOCK_Q"]) == (None, None)
    parameters = {*DENSE_CONFIG, *PAGED_CONFIG, *FLEX_CONFIG}
    assert all(row[name] is None for row in (rows[1], rows[3]) for name in parameters)  # not tuned here


def test_parameters_are_those_of_the_implementations_that_occur(tmp_path: Path) -> None:
    path = tmp_path / "bench.parquet"
    write_comparisons(path, [served_by(comparison(), DENSE_CONFIG)])
    names = pq.read_schema(path).names
    assert "BLOCK_Q" in names
    assert "BLOCK_M" not in names


def test_device_conditions_and_time_are_columns_as_in_a_table_of_trials(tmp_path: Path) -> None:
    started_at = datetime(2026, 11, 21, 6, 30, 0, 250, tzinfo=UTC)
    conditions = Conditions(1500, 2619, 61, throttle_reasons="power, thermal", contended=True)
    moment = started_at.isoformat()
    on_gpu = comparison(gpu=asdict(NVIDIA_H200), conditions=asdict(conditions), started_at=moment)
    on_cpu = comparison(device="AMD EPYC, 2 cores", started_at=moment)
    path = tmp_path / "bench.parquet"
    write_comparisons(path, [on_gpu, on_cpu])
    table = pq.read_table(path)
    of_device = {"device_name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132, "memory_mib": 143771}
    of_race = {"sm_clock_mhz": 1500, "memory_clock_mhz": 2619, "temperature_c": 61, "contended": True}
    wanted = {**of_device, "power_cap_watts": 700, **of_race, "throttle_reasons": "power, thermal"}
    rows = table.to_pylist()
    for row in rows[:SYSTEMS]:
        assert {name: row[name] for name in wanted} == wanted
    for row in rows[SYSTEMS:]:
        assert row["device_name"] == "AMD EPYC, 2 cores"
        assert all(row[name] is None for name in wanted if name != "device_name")
    assert {row["started_at"] for row in rows} == {started_at}
    trials = table_schema(get_implementation("flash_attention", "triton")).arrow
    shared = ("operation", *wanted, "started_at", "policy_mode", "triton_version", "seq_q", "median_us", "error")
    assert all(table.schema.field(name).type == trials.field(name).type for name in shared)
    assert "device" not in table.schema.names


def test_threads_are_those_of_a_processor(tmp_path: Path) -> None:
    path = tmp_path / "bench.parquet"
    write_comparisons(path, [comparison(threads=2), comparison()])
    table = pq.read_table(path)
    assert table.schema.field("threads").type == pa.int64()
    assert table.column("threads").to_pylist() == [2] * SYSTEMS + [None] * SYSTEMS


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "bench.parquet"
    write_comparisons(path, [comparison()])
    data = path.read_bytes()
    assert pq.read_metadata(path).metadata == {b"autotune.comparison_version": b"2"}
    assert holds_comparisons(data)
    assert not holds_comparisons(data[:-1])
    assert not holds_comparisons(b"")
    pq.write_table(pa.table({"name": ["naive"]}), path)
    assert not holds_comparisons(path.read_bytes())
    assert not holds_comparisons(encode([sample.trial()]))


def test_columns_that_differ_by_implementation_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text where the other implementation has numbers, and a parameter that is named as what every comparison has."""
    data = [served_by(served_by(comparison(), DENSE_CONFIG), {}, "flex", place=2)]
    change_space(monkeypatch, "flash_attention", "flex", (Parameter("BLOCK_Q", ("a", "b")),))
    with pytest.raises(TableError, match="flash_attention/triton: BLOCK_Q is int64, and string before"):
        write_comparisons(tmp_path / "bench.parquet", data)
    change_space(monkeypatch, "flash_attention", "flex", (Parameter("ratio", (1, 2)),))
    with pytest.raises(TableError, match="more than one column of the comparison is named ratio"):
        write_comparisons(tmp_path / "bench.parquet", data)
    assert list(tmp_path.iterdir()) == []


def test_what_fits_no_column_is_refused(tmp_path: Path) -> None:
    for column, value in (("error", "small"), ("config", {"BLOCK_Q": "64 or so"})):
        data = served_by(comparison(), DENSE_CONFIG)
        data["rows"][0][column] = value
        with pytest.raises(TableError, match=r"bench\.parquet"):
            write_comparisons(tmp_path / "bench.parquet", [data])
    assert list(tmp_path.iterdir()) == []
