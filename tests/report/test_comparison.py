"""A comparison as text, Markdown and plain data."""

import json

from autotune.comparison import Comparison, Entry
from autotune.report.comparison import cells, comparison_data, headers, markdown, notes
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Policy, Timing, Toolchain

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


def test_who_is_missing_and_who_is_unverified_is_said() -> None:
    assert notes(COMPARISON) == [
        "not compared: cudnn: pip install cudnn",
        "* gaudi | flat: never run on the hardware that it is written for",
    ]


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
    assert "cudnn" in markdown([empty])
