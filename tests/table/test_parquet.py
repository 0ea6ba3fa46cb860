"""Tables as bytes: every field survives, nothing impossible is read, and damage is refused."""

import dataclasses
import io
import math
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import TableError
from autotune.shape import Shape
from autotune.space import Config, Parameter
from autotune.table.parquet import decode, encode, owner_of, to_parquet
from autotune.table.rows import to_columns, to_table
from autotune.table.schema import table_schema
from autotune.trial import Conditions, Status, Timing, Toolchain, Trial
from tests.table import sample
from tests.table.growth import change_space

# The format on disk. A change here needs a new schema version, or old files are refused.
COLUMNS = """
operation implementation source_hash status message stage race_id is_default median_us low_us high_us samples
default_median_us default_low_us default_high_us default_samples baseline baseline_median_us baseline_low_us
baseline_high_us baseline_samples heuristic_median_us heuristic_low_us heuristic_high_us heuristic_samples
served_median_us served_low_us served_high_us served_samples served_rung is_served expected_regret evidence
error error_limit tflops gbps shared_bytes registers spill_bytes binary
compile_seconds judge_seconds policy_mode policy_cache executor device_name arch sm_count memory_mib power_cap_watts
sm_clock_mhz memory_clock_mhz temperature_c throttle_reasons contended tool_version triton_version ptxas_version
torch_version cuda_version driver_version study seed number worker started_at batch heads kv_heads seq_q seq_kv
head_dim head_dim_v dtype causal window softcap attn_mask sinks kv_ends
BLOCK num_warps loads kpack default_BLOCK default_num_warps
default_loads default_kpack
"""
# Those that joined since the schema version did: files without them are read.
LATER = (
    *("heuristic_", "served_", "expected_regret", "evidence"),
    *("default_BLOCK", "default_num_warps", "default_loads", "default_kpack"),
)


TIMING = Timing(3.0, 2.0, 4.0, 20)


@settings(max_examples=40, deadline=None)
@given(st.lists(sample.trials(), min_size=1, max_size=4))
def test_every_field_survives(trials: list[Trial]) -> None:
    assert decode(encode(trials), "table") == (trials, [])


def test_columns_and_types_are_the_format() -> None:
    schema = pq.read_schema(io.BytesIO(encode([sample.trial()])))
    assert schema.names == COLUMNS.split()
    assert schema.metadata == {
        b"autotune.schema_version": b"2",
        b"autotune.operation": sample.NAME.encode(),
        b"autotune.implementation": b"triton",
    }
    types = {name: str(schema.field(name).type) for name in ("started_at", "median_us", "batch", "window", "causal")}
    assert types == {
        "started_at": "timestamp[us, tz=UTC]",
        "median_us": "double",
        "batch": "int64",
        "window": "int64",
        "causal": "bool",
    }
    assert [str(schema.field(name).type) for name in ("BLOCK", "loads", "kpack")] == ["int64", "string", "int64"]
    sampled = ("batch", "status", "message", "window", "median_us", "kpack")
    nullable = {name for name in sampled if schema.field(name).nullable}
    assert nullable == {"window", "median_us", "kpack"}


def test_values_stand_in_the_columns_of_their_names() -> None:
    trial = sample.trial(
        7, timing=Timing(3.0, 1.0, 5.0, 9), default_timing=Timing(4.0, 2.0, 6.0, 8), toolchain=Toolchain("t", cuda="c")
    )
    row = pq.read_table(io.BytesIO(encode([trial]))).to_pylist()[0]
    assert (row["low_us"], row["median_us"], row["high_us"], row["samples"]) == (1.0, 3.0, 5.0, 9)
    assert (row["default_low_us"], row["default_median_us"], row["default_high_us"]) == (2.0, 4.0, 6.0)
    assert (row["tool_version"], row["cuda_version"], row["device_name"], row["arch"]) == (
        "t",
        "c",
        "NVIDIA H200",
        "sm_90",
    )
    assert (row["batch"], row["kv_heads"], row["BLOCK"], row["kpack"]) == (2, 2, 32, None)
    assert row["started_at"] == trial.started_at


def test_equal_rows_give_equal_bytes() -> None:
    trials = [sample.trial(number) for number in range(50)]
    assert encode(trials) == encode([dataclasses.replace(trial) for trial in trials])


def test_long_and_undecodable_messages_are_kept_as_far_as_they_go() -> None:
    message = decode(encode([sample.trial(message="x" * 5000 + "\udc80")]), "table").trials[0].outcome.message
    assert message == "x" * 4095 + "…"
    assert decode(encode([sample.trial(message="a\udc80b")]), "table").trials[0].outcome.message == "a?b"


IMPOSSIBLE: dict[str, tuple[str, dict[str, Any]]] = {
    "ok without a time": ("median_us=None", {"timing": None}),
    "time of zero": ("low_us=0.0", {"timing": Timing(1.0, 0.0, 2.0, 3)}),
    "NaN time": ("median_us=nan", {"timing": Timing(math.nan, 1.0, 2.0, 3)}),
    "infinite time": ("high_us=inf", {"timing": Timing(1.0, 1.0, math.inf, 3)}),
    "median below its interval": ("median_us=1.0", {"timing": Timing(1.0, 2.0, 3.0, 3)}),
    "median above its interval": (
        "baseline_median_us=4",
        {"baseline": "b", "baseline_timing": Timing(4, 2, 3, 3)},
    ),
    "no samples": ("default_samples=0", {"default_timing": Timing(2.0, 1.0, 3.0, 0)}),
    "half a timing": ("median_us=None", {"status": Status.SLOW, "timing": Timing(None, 1.0, 2.0, 3)}),  # type: ignore[arg-type]
    "baseline without a name": ("baseline=''", {"baseline_timing": sample.timing()}),
    "ok beyond the error limit": ("error=2.0", {"error": 2.0, "error_limit": 1.0}),
    "ok with an infinite error": ("error=inf", {"error": math.inf}),
    "NaN error": ("error=nan", {"status": Status.WRONG_RESULT, "error": math.nan}),
    "negative number": ("number=-1", {"number": -1}),
    "seed beyond int64": ("seed=9223372036854775808", {"seed": 2**63}),
    "fraction in an integer": ("seed=1.5", {"seed": 1.5}),
    "truth in an integer": ("seed=True", {"seed": True}),
    "unknown executor": ("executor='cpu'", {"executor": "cpu"}),
    "unknown status": ("status='fine'", {"status": "fine"}),
    "value not in the space": ("BLOCK=100", {"config": sample.config(block=100)}),
    "text not in the space": ("loads='magic'", {"config": sample.config(loads="magic")}),
    "text in an integer": ("num_warps='4'", {"config": Config(BLOCK=32, num_warps="4", loads="pointer", kpack=None)}),
    "another backend's parameter": ("kpack=2", {"config": sample.config(kpack=2)}),
    "missing parameter": ("config=", {"config": Config(BLOCK=32)}),
    "foreign shape": ("shape=", {"shape": Shape()}),
    "time without a zone": ("started_at=", {"started_at": datetime(2026, 1, 1)}),
    "time before 1970": ("started_at=", {"started_at": sample.START.replace(year=1969)}),
    "device without a folder": ("device_name='?'", {"device": dataclasses.replace(sample.MI300X, name="?")}),
    "text too long": ("worker=", {"worker": "w" * 4097}),
    "negative clock": ("sm_clock_mhz=-1", {"conditions": Conditions(sm_clock_mhz=-1)}),
    "unstorable text": ("surrogates not allowed", {"study": "\udc80"}),
}


@pytest.mark.parametrize(("named", "changes"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_trial_is_not_written(named: str, changes: dict[str, Any]) -> None:
    with pytest.raises(TableError) as caught:
        encode([sample.trial(), sample.trial(**changes)], "folder")
    assert named in str(caught.value)
    assert str(caught.value).startswith("folder: ")
    assert "row 1" in str(caught.value) or "surrogates" in named


def _rewritten(change: Callable[[pa.Table], pa.Table]) -> bytes:
    """A table as another program may write it."""
    table = change(pq.read_table(io.BytesIO(encode([sample.trial(number) for number in range(3)]))))
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(table.schema.metadata or {})
    return sink.getvalue()


def _with(name: str, values: list[Any], kind: Any = None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        column = pa.array(values, kind or table.schema.field(name).type)
        return table.set_column(table.schema.get_field_index(name), name, column)

    return change


FOREIGN: dict[str, tuple[str, Callable[[pa.Table], pa.Table]]] = {
    "status": ("row 2: status='fine'", _with("status", ["ok", "ok", "fine"])),
    "time": ("row 2: low_us=-1.0", _with("low_us", [98.0, 98.0, -1.0])),
    "operation": (
        "row 1: operation='flash_attention'",
        _with("operation", ["table_sample", "flash_attention", "table_sample"]),
    ),
    "long text": ("row 0: study='xxx", _with("study", ["x" * 4097, "", ""])),
    "type": ("column batch is string", _with("batch", ["1", "1", "1"], pa.string())),
    "float type": ("column batch is double", _with("batch", [1.0, 1.0, 1.0], pa.float64())),
    "unit of time": ("column started_at", _with("started_at", [0, 0, 0], pa.timestamp("ms", tz="UTC"))),
    "implementation": ("row 2: implementation='flex'", _with("implementation", ["triton", "triton", "flex"])),
    "column of a list": ("note is list", lambda table: table.append_column("note", pa.array([[1], [2], [3]]))),
    "column of a number": (
        "note is float",
        lambda table: table.append_column("note", pa.array([1.0, 2.0, 3.0], pa.float32())),
    ),
    "column without a name": ("column a b is", lambda table: table.append_column("a b", pa.array([1, 2, 3]))),
    "missing column": ("missing columns: device_name", lambda table: table.drop_columns(["device_name"])),
    "missing nullable column": ("missing columns: median_us", lambda table: table.drop_columns(["median_us"])),
    "missing implementation": ("missing columns: implementation", lambda table: table.drop_columns(["implementation"])),
    "same column twice": ("two columns", lambda table: table.append_column("batch", table.column("batch"))),
    "no metadata": ("metadata", lambda table: table.replace_schema_metadata(None)),
    "more metadata": ("metadata", lambda table: table.replace_schema_metadata({**table.schema.metadata, b"x": b"y"})),
    "future version": (
        "autotune.schema_version='3'",
        lambda table: table.replace_schema_metadata({**table.schema.metadata, b"autotune.schema_version": b"3"}),
    ),
    "another operation": (
        "row 0: operation='table_sample'",
        lambda table: table.replace_schema_metadata({**table.schema.metadata, b"autotune.operation": b"nothing"}),
    ),
}


@pytest.mark.parametrize(("reason", "change"), FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_table_is_refused_with_the_reason(reason: str, change: Callable[[pa.Table], pa.Table]) -> None:
    with pytest.raises(TableError, match=r"^some file: ") as caught:
        decode(_rewritten(change), "some file")
    assert reason in str(caught.value)


def test_rows_from_before_name_no_default_no_heuristic_and_nothing_served() -> None:
    served: dict[str, Any] = {"served_timing": TIMING, "served_rung": "nearest", "expected_regret": 0.03, "evidence": 4}
    joined: dict[str, Any] = {"default_config": sample.config(64), "heuristic_timing": TIMING, **served}
    rows = [sample.trial(number, **joined) for number in (1, 2)]
    nothing: dict[str, Any] = dict.fromkeys(joined)
    data = encode(rows)
    assert decode(data, "table") == (rows, [])
    table = pq.read_table(io.BytesIO(data))
    older = table.drop_columns([name for name in table.column_names if name.startswith(LATER)])
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    found = decode(to_parquet(older.replace_schema_metadata(None), metadata), "table")
    assert found == ([replace(row, **nothing) for row in rows], [])


def test_a_default_that_left_the_space_leaves_its_row_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(sample.trial(1), default_config=sample.config(16))
    data = encode([row])
    fewer = (replace(sample.PARAMETERS[0], values=(32, 64)), *sample.PARAMETERS[1:])
    change_space(monkeypatch, sample.NAME, "triton", fewer)
    assert decode(data, "table") == ([replace(row, default_config=None)], [])
    lesser = tuple(each for each in sample.PARAMETERS if each.name != "loads")
    change_space(monkeypatch, sample.NAME, "triton", lesser, removed={"loads": "pointer"})
    (kept,), outsiders = decode(data, "table")
    assert (kept.default_config, outsiders) == (Config(BLOCK=16, num_warps=4, kpack=None), [])


def test_a_default_of_another_space_is_not_written() -> None:
    with pytest.raises(TableError, match=r"row 0: default_config=.* is not allowed; expected a config of the space"):
        encode([replace(sample.trial(1), default_config=sample.config(48))])


def test_foreign_writers_of_the_right_columns_are_read() -> None:
    assert decode(_rewritten(lambda table: table), "table").trials == [sample.trial(number) for number in range(3)]


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode([sample.trial(number) for number in range(11)])
    for limit, value, named in (
        ("MAX_VALUES", 11 * 89 - 1, "979 values"),
        ("MAX_COLUMNS", 88, "89 columns"),
        ("MAX_PAGES", 100, "101 pages"),
        ("MAX_DECODED_BYTES", 1000, "decoded bytes"),
        ("MAX_FOOTER_BYTES", 1000, "bytes of footer"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"autotune.table.page_bounds.{limit}", value)
            with pytest.raises(TableError, match=named):
                decode(data, "table")
    monkeypatch.setattr("autotune.table.parquet.MAX_FILE_BYTES", 1000)
    with pytest.raises(TableError, match="more than a reader takes"):
        encode([sample.trial()])


def test_one_text_repeated_over_many_rows_takes_its_length_once() -> None:
    data = encode([sample.trial(number, message="x" * 4096) for number in range(200)])
    assert len(decode(data, "table").trials) == 200
    assert len(data) < 30_000


def test_truncation_is_refused_at_every_offset() -> None:
    data = encode([sample.trial(number) for number in range(20)])
    for length in [*range(0, len(data), 29), *range(len(data) - 40, len(data))]:
        with pytest.raises(TableError):
            decode(data[:length], "table")


def test_flipped_bits_raise_nothing_but_table_errors() -> None:
    """The digest of the file catches every flip; this is about what lies behind it."""
    trials = [sample.trial(number) for number in range(20)]
    data = encode(trials)
    generator = random.Random(0)
    silently_wrong = 0
    for _ in range(300):
        damaged = bytearray(data)
        damaged[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        try:
            silently_wrong += decode(bytes(damaged), "table").trials != trials
        except TableError:
            continue
    assert silently_wrong <= 3  # 1 %: page checksums do not cover the footer


def test_the_owner_is_read_from_the_footer() -> None:
    assert owner_of(encode([sample.trial()]), "table") == (sample.NAME, "triton")


def test_a_table_holds_one_implementation() -> None:
    with pytest.raises(TableError, match="got no trials"):
        encode([])
    with pytest.raises(TableError, match="flash_attention/triton, table_sample/triton"):
        encode([sample.trial(), sample.trial(operation="flash_attention")])
    with pytest.raises(TableError, match="table_sample/foreign, table_sample/triton"):
        encode([sample.trial(), sample.trial(implementation="foreign")])
    with pytest.raises(TableError, match="implementation='nothing' of table_sample is unknown"):
        encode([sample.trial(implementation="nothing")])


def test_one_name_for_two_columns_is_refused() -> None:
    space = dataclasses.replace(sample.IMPLEMENTATION.space, parameters=(Parameter("dtype", (1, 2)),))
    with pytest.raises(TableError, match="more than one column is named dtype"):
        table_schema(dataclasses.replace(sample.IMPLEMENTATION, space=space))


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b"])
def test_a_name_that_cannot_name_a_file_is_refused(name: str) -> None:
    found = sample.IMPLEMENTATION
    for implementation in (dataclasses.replace(found, operation=name), dataclasses.replace(found, name=name)):
        with pytest.raises(TableError, match="cannot name a file"):
            table_schema(implementation)


def test_values_of_a_parameter_come_back_as_declared() -> None:
    parameters = (Parameter("flag", (False, True)), Parameter("mixed", (1, "auto")))
    space = dataclasses.replace(sample.IMPLEMENTATION.space, parameters=parameters)
    schema = table_schema(dataclasses.replace(sample.IMPLEMENTATION, space=space))
    trial = sample.trial(config=Config(flag=True, mixed=1))
    columns, _ = to_columns(schema, [trial], "table")
    assert (columns["flag"], columns["mixed"]) == ([1], ["1"])
    (back,) = to_table(schema, columns, "table").trials
    assert [type(value) for value in back.config.values()] == [bool, int]
