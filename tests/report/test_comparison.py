"""A comparison as text, Markdown and plain data."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from autotune.comparison import Comparison, Entry
from autotune.device import NVIDIA_H200
from autotune.report.comparison import cells, comparison_data, headers, markdown, notes, title
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Conditions, Policy, Timing, Toolchain

ENTRIES = (
    Entry("autotune", Timing(100.0, 99.0, 101.0, 15), 500.0, 50.0, 0.001, 0.004, 2**20, "", True),
    Entry("naive", Timing(2000.0, 1990.0, 2010.0, 15), 25.0, 2.5, 0.002, 0.004, 300 * 2**20, "", True),
    Entry("gaudi | flat", Timing(150.0, 149.0, 151.0, 15), 333.0, 33.3, verified_on_hardware=False),
    Entry("cudnn", message="pip install cudnn"),
)
COMPARISON = Comparison(
    "flash_attention",
    AttentionShape(batch=1, heads=2, seq_q=64, head_dim=64),
    "NVIDIA H200",
    Toolchain("0.1.0"),
    Policy(),
    Config(BLOCK_Q=64),
    "tuned for this shape",
    ENTRIES,
)


def test_rows_are_compared_with_the_first() -> None:
    assert headers(COMPARISON) == ("", "time (95 %)", "TFLOP/s", "autotune is", "error", "extra memory")
    assert cells(COMPARISON) == [
        ("autotune", "100.0 us (99.0-101.0)", "500", "", "1.0e-03", "1.0 MiB"),
        ("naive", "2.000 ms (1.990-2.010)", "25", "20.00x (19.70-20.30) its speed", "2.0e-03", "300.0 MiB"),
        ("gaudi | flat *", "150.0 us (149.0-151.0)", "333", "1.50x (1.48-1.53) its speed", "", ""),
    ]


def test_small_machines_have_gigaflops() -> None:
    entries = tuple(replace(entry, tflops=entry.tflops and entry.tflops / 1e4) for entry in ENTRIES)
    small = replace(COMPARISON, device="AMD EPYC 9454", entries=entries)
    assert headers(small)[2] == "GFLOP/s"
    assert [row[2] for row in cells(small)] == ["50", "2.5", "33.3"]


def test_rates_have_no_exponent() -> None:
    fast = replace(ENTRIES[0], tflops=16.3, gbps=4077.8)
    assert cells(replace(COMPARISON, entries=(fast,)))[0][2] == "4078"


@pytest.mark.parametrize(
    ("device", "dtype", "heading"),
    [
        ("NVIDIA H200", "bfloat16", "GB/s"),  # 64 FLOPs a byte are below 206
        ("NVIDIA H200", "float32", "TFLOP/s"),  # and above 34
        ("AMD EPYC 9454", "bfloat16", "TFLOP/s"),  # of which no data sheet is known
    ],
)
def test_the_rate_is_that_of_the_device_and_dtype(device: str, dtype: str, heading: str) -> None:
    found = replace(
        COMPARISON,
        shape=AttentionShape(batch=1, heads=2, seq_q=64, head_dim=64, dtype=dtype),
        device=device,
        entries=(replace(ENTRIES[0], tflops=8.192, gbps=128.0),),
    )
    assert headers(found)[2] == heading
    assert cells(found)[0][2] == {"GB/s": "128", "TFLOP/s": "8.19"}[heading]


def test_who_is_missing_and_who_is_unverified_is_said() -> None:
    assert notes(COMPARISON) == [
        "not compared: cudnn: pip install cudnn",
        "* gaudi | flat: never run on the hardware that it is written for",
    ]


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        (None, []),
        (Conditions(sm_clock_mhz=1980), []),
        (Conditions(contended=True), ["contended: another process was using the GPU during the race"]),
        (Conditions(throttle_reasons="power"), ["throttled: the GPU's clocks were held down (power)"]),
    ],
    ids=["unknown", "quiet", "contended", "throttled"],
)
def test_what_disturbed_a_race_is_said_first(conditions: Conditions | None, told: list[str]) -> None:
    disturbed = replace(COMPARISON, conditions=conditions)
    assert notes(disturbed) == [*told, *notes(COMPARISON)]
    assert all(f"- {line}" in markdown([disturbed]).splitlines() for line in told)


def test_data_says_where_when_and_under_which_conditions() -> None:
    started_at = datetime(2026, 11, 21, 6, 30, tzinfo=UTC)
    measured = replace(COMPARISON, gpu=NVIDIA_H200, conditions=Conditions(contended=True), started_at=started_at)
    data = json.loads(json.dumps(comparison_data(measured)))
    assert (data["device"], data["gpu"]["power_cap_watts"], data["gpu"]["sm_count"]) == ("NVIDIA H200", 700, 132)
    assert (data["conditions"]["contended"], data["conditions"]["sm_clock_mhz"]) == (True, None)
    assert datetime.fromisoformat(data["started_at"]) == started_at
    unknown = comparison_data(COMPARISON)
    assert (unknown["gpu"], unknown["conditions"], unknown["started_at"]) == (None, None, None)


def test_markdown_is_a_table_whatever_names_hold() -> None:
    lines = markdown([COMPARISON]).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 3
    assert {line.replace("\\|", "").count("|") for line in table} == {7}
    assert "Served: `BLOCK_Q=64` (tuned for this shape)." in lines
    assert lines[-1].startswith("- * gaudi")


def test_data_holds_everything_and_is_json() -> None:
    data = json.loads(json.dumps(comparison_data(COMPARISON)))
    assert [row["name"] for row in data["rows"]] == [entry.name for entry in ENTRIES]
    assert data["rows"][1]["ratio"]["value"] == 20.0
    assert (data["rows"][3]["timing"], data["rows"][3]["ratio"]) == (None, None)
    assert (data["config"], data["policy"]["mode"]) == ({"BLOCK_Q": 64}, "graph")


def test_a_comparison_without_a_time_is_told_too() -> None:
    empty = Comparison("flash_attention", COMPARISON.shape, "x", Toolchain("0"), Policy(), None, "", ENTRIES[3:])
    assert cells(empty) == []
    assert notes(empty) == ["not compared: cudnn: pip install cudnn"]
    named = replace(empty, entries=(replace(ENTRIES[3], message="cuDNN needs a GPU"),))
    assert notes(named) == ["not compared: cudnn: needs a GPU"]
    assert all(" is" not in header for header in headers(empty))
    assert markdown([empty]).splitlines()[2:] == ["Nothing ran here.", "", "- not compared: cudnn: pip install cudnn"]


@pytest.mark.parametrize(("threads", "end"), [(None, ""), (1, ", 1 thread"), (8, ", 8 threads")])
def test_the_title_of_a_race_on_a_processor_has_its_threads(threads: int | None, end: str) -> None:
    found = replace(COMPARISON, threads=threads)
    assert title(found) == f"{found.shape} on {found.device}{end}"
    assert comparison_data(found)["threads"] == threads
