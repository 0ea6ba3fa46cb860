"""A comparison as a table and as plain data."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from autotune.console.output import print_sheet
from autotune.device import NVIDIA_H200
from autotune.lab.bench.comparison import Comparison, Entry, comparison_data, comparison_sheet
from autotune.shape import AttentionShape
from autotune.sheets import Sheet, markdown
from autotune.space import Config
from autotune.trial import Candidate, Conditions, Policy, Timing, Toolchain
from tests.golden import assert_golden

SERVED = Config(BLOCK_Q=64)
ENTRIES = (
    Entry(
        "autotune",
        Timing(100.0, 99.0, 101.0, 15),
        500.0,
        50.0,
        0.001,
        0.004,
        2**20,
        candidate=Candidate("triton", SERVED),
    ),
    Entry("naive", Timing(2000.0, 1990.0, 2010.0, 15), 25.0, 2.5, 0.002, 0.004, 300 * 2**20),
    Entry("gaudi | flat", Timing(150.0, 149.0, 151.0, 15), 333.0, 33.3, verified_on_hardware=False),
    Entry("cudnn", message="cuDNN needs a GPU"),
)
COMPARISON = Comparison(
    "flash_attention",
    AttentionShape(batch=1, heads=2, seq_q=64, head_dim=64),
    "NVIDIA H200",
    Toolchain("0.1.0"),
    Policy(),
    ENTRIES,
    "tuned for this shape",
)
EMPTY = replace(COMPARISON, entries=ENTRIES[3:], reason="")


def column(sheet: Sheet, place: int) -> list[str]:
    return [row[place] for row in sheet.texts()]


def test_the_printed_text_and_markdown_are_the_golden_file() -> None:
    """A GPU that was disturbed, then a processor on which nothing ran."""
    disturbed = replace(COMPARISON, conditions=Conditions(throttle_reasons="power", contended=True))
    sheets = [comparison_sheet(disturbed, name="flash_attention"), comparison_sheet(replace(EMPTY, threads=1))]
    console = Console(file=io.StringIO(), width=200, markup=False, emoji=False, highlight=False)
    for sheet in sheets:
        print_sheet(console, sheet)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    parts = [text, *(markdown(sheet, level=2) for sheet in sheets)]
    assert_golden(Path(__file__).parent / "golden.txt", "\n".join(parts))


def test_rows_are_compared_with_the_first() -> None:
    sheet = comparison_sheet(COMPARISON)
    assert sheet.names[3] == "autotune is"
    assert column(sheet, 3) == ["", "20.00x (19.70-20.30) its speed", "1.50x (1.48-1.53) its speed"]


def test_small_machines_have_gigaflops() -> None:
    entries = tuple(replace(entry, tflops=entry.tflops and entry.tflops / 1e4) for entry in ENTRIES)
    small = comparison_sheet(replace(COMPARISON, device="AMD EPYC 9454", entries=entries))
    assert column(small, 2) == ["50.0 GFLOP/s", "2.50 GFLOP/s", "33.3 GFLOP/s"]


@pytest.mark.parametrize(
    ("device", "dtype", "rate"),
    [
        ("NVIDIA H200", "bfloat16", "4078 GB/s"),  # 64 FLOPs a byte are below 206
        ("NVIDIA H200", "float32", "261 TFLOP/s"),  # and above 34
        ("AMD EPYC 9454", "bfloat16", "261 TFLOP/s"),  # of which no data sheet is known
    ],
)
def test_the_rate_is_that_of_the_device_and_dtype(device: str, dtype: str, rate: str) -> None:
    found = replace(
        COMPARISON,
        shape=AttentionShape(batch=1, heads=2, seq_q=64, head_dim=64, dtype=dtype),
        device=device,
        entries=(replace(ENTRIES[0], tflops=64 * 4.0778, gbps=4077.8),),
    )
    assert column(comparison_sheet(found), 2) == [rate]


def test_data_says_where_when_and_under_which_conditions() -> None:
    started_at = datetime(2026, 11, 21, 6, 30, tzinfo=UTC)
    measured = replace(COMPARISON, gpu=NVIDIA_H200, conditions=Conditions(contended=True), started_at=started_at)
    data = json.loads(json.dumps(comparison_data(measured)))
    assert (data["device"], data["gpu"]["power_cap_watts"], data["gpu"]["sm_count"]) == ("NVIDIA H200", 700, 132)
    assert (data["conditions"]["contended"], data["conditions"]["sm_clock_mhz"]) == (True, None)
    assert datetime.fromisoformat(data["started_at"]) == started_at
    unknown = comparison_data(COMPARISON)
    assert (unknown["gpu"], unknown["conditions"], unknown["started_at"]) == (None, None, None)


def test_data_holds_everything_and_is_json() -> None:
    data = json.loads(json.dumps(comparison_data(COMPARISON)))
    assert [row["name"] for row in data["rows"]] == [entry.name for entry in ENTRIES]
    assert data["rows"][1]["ratio"]["value"] == 20.0
    assert (data["rows"][3]["timing"], data["rows"][3]["ratio"]) == (None, None)
    ours = {"implementation": "triton", "config": {"BLOCK_Q": 64}}
    assert [{name: each[name] for name in ours} for each in (data, *data["rows"][:2])] == [
        ours,
        ours,
        dict.fromkeys(ours),
    ]
    assert (data["policy"]["mode"], data["reason"]) == ("graph", "tuned for this shape")
    empty = comparison_data(EMPTY)
    assert (empty["implementation"], empty["config"], empty["rows"][0]["ratio"]) == (None, None, None)


@pytest.mark.parametrize(("threads", "end"), [(None, ""), (1, ", 1 thread"), (8, ", 8 threads")])
def test_the_title_of_a_race_on_a_processor_has_its_threads(threads: int | None, end: str) -> None:
    found = replace(COMPARISON, threads=threads)
    assert comparison_sheet(found).title == f"{found.shape} on {found.device}{end}"
    assert comparison_data(found)["threads"] == threads
