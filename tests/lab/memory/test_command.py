"""``autotune analyze memory``: its text, its JSON, and its refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.lab.machine import processor
from autotune.lab.machine.processor import Processor
from autotune.lab.memory import peaks
from autotune.lab.memory.peaks import Peak
from autotune.shape import AttentionShape
from tests.lab.stopping import Run, Stopped, assert_session, shown_and_data

SMALL = ("--seq", "32,64", "--heads", "2", "--head-dim", "16", "--device", "cpu")


def test_golden(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager's peaks are exact on a CPU; the larger of the last length would not fit. Flash's peaks are given."""
    measure = peaks._measure

    def exact(baseline: Any, shape: AttentionShape, here: Processor, predicted: int) -> tuple[Peak, float]:
        found, seconds = measure(baseline, shape, here, predicted)
        return (found if baseline.name == "eager" else Peak(baseline.name, shape, predicted, 2 * predicted)), seconds

    monkeypatch.setattr(processor, "read_processor", lambda kind: Processor("cpu", "a CPU", 2**25, 8))
    monkeypatch.setattr(peaks, "usable_bytes", lambda processor: 4 * 2**20)
    monkeypatch.setattr(peaks, "_measure", exact)
    monkeypatch.setenv("COLUMNS", "100")
    given = (
        ("analyze", "memory", "--help"),
        ("analyze", "memory", "--seq", "128,...,2048", "--device", "cpu"),
        ("analyze", "memory", "--device", "cuda"),
        ("analyze", "memory", "--seq", "-8"),
        ("analyze", "memory", "--seq", "128,x"),
        ("analyze", "memory", "--heads", "3", "--kv-heads", "2"),
        ("analyze", "memory", "--dtype", "int4"),
        ("analyze", "memory", "--seconds", "0"),
    )
    assert_session(Path(__file__).with_name("golden.txt"), *((each, run(*each)) for each in given))


@pytest.mark.slow
def test_as_json(run: Run) -> None:
    data = json.loads(run("analyze", "memory", *SMALL, "--json").out)
    assert [item["of_head"] for item in data["scores"]] == [32 * 32 * 4, 64 * 64 * 4]
    eager = [peak for peak in data["peaks"] if peak["name"] == "eager"]
    assert [peak["measured"] for peak in eager] == [peak["predicted"] for peak in eager]
    assert data["machine"]["kind"] == "cpu"


def test_an_interrupt_keeps_the_peaks(run: Run, monkeypatch: pytest.MonkeyPatch, stopped: Stopped) -> None:
    stop, code = stopped

    def measure(baseline: Any, shape: AttentionShape, here: Processor, predicted: int) -> tuple[Peak, float]:
        if shape.seq_q == 64:
            stop()
        return Peak(baseline.name, shape, predicted, 7 * 2**20), 0.0

    monkeypatch.setattr(peaks, "_measure", measure)
    shown, data = shown_and_data(run, "memory", *SMALL, code=code)
    assert "7.0 MiB" in shown
    found = [(peak["name"], peak["shape"]["seq_q"], peak["measured"]) for peak in data["peaks"]]
    assert found == [("eager", 32, 7 * 2**20)]
    assert data["interrupted"]
    assert len(data["scores"]) == 2
