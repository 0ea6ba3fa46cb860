"""A suite's result in words and as data."""

import json
from dataclasses import replace
from typing import Any

import pytest

from autotune.comparison import Comparison
from autotune.comparison.suites import Column, SuiteResult, Table
from autotune.comparison.suites.suite import Kind
from autotune.report.suite import cells, heading, is_text, markdown, notes, suite_data
from autotune.shape import AttentionShape
from autotune.trial import Conditions, Policy, Timing, Toolchain

TABLE = Table(
    "times | memory",
    (Column("name"), Column("time", "time"), Column("peak", "bytes")),
    (("a|b", Timing(1500.0, 1400.0, 1600.0, 5), 2**20), ("c", None, None)),
    notes=("reduced",),
    failures=("c: no kernel",),
)


def result(policy: Policy | None = None) -> SuiteResult:
    return SuiteResult("exercise", "what it is", "a machine", Toolchain("0.1.0"), policy, (TABLE,))


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "time", ""),
        ("word", "text", "word"),
        (1024, "count", "1024"),
        (Timing(1500.0, 1400.0, 1600.0, 5), "time", "1.500 ms (1.400-1.600)"),
        (12.34, "time", "12.3 us"),
        (1234.5, "time", "1.234 ms"),
        (1000, "bytes", "1000 B"),
        (65536, "bytes", "64.0 KiB"),
        (3 * 2**20 // 2, "bytes", "1.5 MiB"),
        (2**31, "bytes", "2.0 GiB"),
        (-2048, "bytes", "-2.0 KiB"),
        (0, "bytes", "0 B"),
        (2.345, "ratio", "2.35x"),
        (0.547, "share", "54.7%"),
        (0.00012, "error", "1.2e-04"),
        (12345.6, "rate", "12,346"),
        (10.666, "intensity", "10.7"),
    ],
)
def test_a_value_reads_as_what_it_is(value: Any, kind: Kind, text: str) -> None:
    assert cells(Table("", (Column("", kind),), ((value,),))) == [(text,)]


def test_a_row_of_another_length_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="zip"):
        cells(Table("", (Column("a"), Column("b")), (("one",),)))


def test_what_disturbed_a_race_is_said_with_its_shape() -> None:
    shape = AttentionShape(batch=1, heads=2, seq_q=64, head_dim=16)
    race = Comparison("flash_attention", shape, "a GPU", Toolchain("0.1.0"), Policy(), None, "", ())
    contended = replace(race, conditions=Conditions(contended=True))
    table = replace(TABLE, comparisons=(race, contended))
    assert notes(table) == [
        "FAILED: c: no kernel",
        f"{shape}: contended: another process was using the GPU during the race",
        "reduced",
    ]


def test_failures_come_before_notes() -> None:
    assert notes(TABLE) == ["FAILED: c: no kernel", "reduced"]
    assert is_text(TABLE) == (True, False, False)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy("graph", "warm"), "a CUDA graph's replay, warm caches"),
        (Policy("graph", "cold"), "a CUDA graph's replay, cold caches"),
        (Policy("eager", "warm"), "runs from Python, warm caches"),
        (None, "nothing was measured here"),
    ],
)
def test_the_heading_says_where_and_how(policy: Policy | None, words: str) -> None:
    assert heading(result(policy)) == f"exercise on a machine: {words}"


@pytest.mark.parametrize(("threads", "text"), [(1, ", 1 thread"), (2, ", 2 threads"), (None, "")])
def test_threads_are_told_with_the_processor(threads: int | None, text: str) -> None:
    found = replace(result(Policy("eager", "warm")), threads=threads)
    assert heading(found) == f"exercise on a machine{text}: runs from Python, warm caches"
    assert suite_data(found)["threads"] == threads


def test_markdown_has_a_section_for_each_table() -> None:
    assert markdown(result()).splitlines() == [
        "## exercise on a machine: nothing was measured here",
        "",
        "what it is",
        "",
        "### times | memory",
        "",
        "| name | time | peak |",
        "| --- | ---: | ---: |",
        "| a\\|b | 1.500 ms (1.400-1.600) | 1.0 MiB |",
        "| c |  |  |",
        "",
        "- FAILED: c: no kernel",
        "- reduced",
    ]


def test_the_data_has_numbers_in_base_units() -> None:
    data = json.loads(json.dumps(suite_data(result(Policy("eager", "warm")))))
    assert (data["suite"], data["device"], data["policy"]["mode"]) == ("exercise", "a machine", "eager")
    (table,) = data["tables"]
    first, second = table["rows"]
    assert first == {
        "name": "a|b",
        "time": {"median_us": 1500.0, "low_us": 1400.0, "high_us": 1600.0, "samples": 5},
        "peak": 2**20,
    }
    assert second == {"name": "c", "time": None, "peak": None}
    assert table["columns"][1] == {"title": "time", "kind": "time"}
    assert data["failures"] == ["c: no kernel"]
    assert suite_data(result())["policy"] is None
