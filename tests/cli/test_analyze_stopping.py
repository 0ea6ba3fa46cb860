"""An analysis that is stopped, by Ctrl-C or SIGTERM, shows what it had, says so, and ends with the signal's code."""

import json
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from autotune.analysis import ceilings, goldilocks, memory, roofline, stability, trace
from autotune.analysis.clock import Call
from autotune.analysis.goldilocks import Exploration
from autotune.analysis.memory import Peak
from autotune.analysis.processor import Processor
from autotune.analysis.stability import Finding, Stability
from autotune.analysis.trace import Traced
from autotune.cli import interrupts
from autotune.shape import AttentionShape
from tests.cli.conftest import Ran

Run = Callable[..., Ran]

SMALL = ("--seq", "32,64", "--heads", "2", "--head-dim", "16", "--device", "cpu")
SAID = "interrupted: what was measured before is shown\n"


@pytest.fixture(params=[(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def stopped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Callable[[], None], int]:
    """Sends this process a signal, to be called where it is to be stopped, and the code that it ends with then."""
    number, code = request.param
    monkeypatch.setattr(interrupts, "_received", signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    return lambda: signal.raise_signal(number), code


Stopped = tuple[Callable[[], None], int]


def shown_and_data(run: Run, *arguments: object, code: int) -> tuple[str, Any]:
    """The text of a run that is stopped, and the JSON of another."""
    text, as_json = run("analyze", *arguments), run("analyze", *arguments, "--json")
    assert (text.code, [line for line in text.err.splitlines() if not line.endswith(" ...")]) == (code, [])
    assert as_json.code == code
    for shown in (text.out, as_json.err):
        assert shown.endswith(SAID)
    return text.out, json.loads(as_json.out)


def test_memory_keeps_its_peaks(run: Run, monkeypatch: pytest.MonkeyPatch, stopped: Stopped) -> None:
    stop, code = stopped

    def measure(baseline: Any, shape: AttentionShape, processor: Processor, predicted: int) -> tuple[Peak, float]:
        if shape.seq_q == 64:
            stop()
        return Peak(baseline.name, shape, predicted, 7 * 2**20), 0.0

    monkeypatch.setattr(memory, "_measure", measure)
    shown, data = shown_and_data(run, "memory", *SMALL, code=code)
    assert "7.0 MiB" in shown
    assert [(peak["name"], peak["shape"]["seq_q"], peak["measured"]) for peak in data["peaks"]] == [
        ("eager", 32, 7 * 2**20)
    ]
    assert data["interrupted"]
    assert len(data["scores"]) == 2


def test_roofline_keeps_its_points(run: Run, monkeypatch: pytest.MonkeyPatch, stopped: Stopped) -> None:
    stop, code = stopped
    monkeypatch.setattr(ceilings, "sample_times", lambda calls, processor: [1000.0])
    monkeypatch.setattr(ceilings, "WIDTHS", {"cpu": (64,)})
    monkeypatch.setattr(ceilings, "CACHES", 0)
    monkeypatch.setattr(ceilings, "MIN_BUFFER", {"cpu": 2**20})
    monkeypatch.setattr(roofline, "MAX_SETS", 1)
    timed: list[int] = []

    def sample(calls: Sequence[Call], processor: Processor) -> list[float]:
        timed.append(len(timed))
        if len(timed) % 4 == 0:  # flash at the second length, of two runs
            stop()
        return [1000.0]

    monkeypatch.setattr(roofline, "sample_times", sample)
    shown, data = shown_and_data(run, "roofline", *SMALL, code=code)
    assert "eager at 64: " in shown
    found = [(point["name"], point["shape"]["seq_q"]) for point in data["points"] if point["timing"]]
    assert found == [("eager", 32), ("sdpa flash", 32), ("eager", 64)]
    assert data["interrupted"]
    assert "claims" not in data
    assert data["ceilings"]


def test_roofline_that_ends_says_so(run: Run) -> None:
    assert json.loads(run("analyze", "roofline", *SMALL, "--no-measure", "--json").out)["interrupted"] is False


def test_goldilocks_keeps_the_shapes_that_ended(run: Run, monkeypatch: pytest.MonkeyPatch, stopped: Stopped) -> None:
    stop, code = stopped

    def explore(operation: Any, shape: AttentionShape, bench: Any, **options: object) -> Exploration:
        if shape.seq_q == 16:
            stop()
        return Exploration(operation.name, shape, bench.device, bench.parameters, 6, (), (), (), 0.0, (), (), ())

    monkeypatch.setattr(goldilocks, "explore", explore)
    given = ("--batch", 1, "--heads", 1, "--head-dim", 8, "--seq", "8,16", "--against", "eager")
    shown, data = shown_and_data(run, "goldilocks", *given, code=code)
    assert "seq 8," in shown
    assert [each["shape"]["seq_q"] for each in data] == [8]


def test_stability_keeps_the_shapes_that_ended(run: Run, monkeypatch: pytest.MonkeyPatch, stopped: Stopped) -> None:
    stop, code = stopped

    def examine(operation: Any, shape: AttentionShape, names: list[str], **options: object) -> Stability:
        if shape.seq_q == 16:
            stop()
        return Stability(operation.name, shape, (Finding("normal", "eager", error=0.0),), ())

    monkeypatch.setattr(stability, "examine", examine)
    shown, data = shown_and_data(run, "stability", "--seq", "8,16", code=code)
    assert "seq 8," in shown
    assert [each["shape"]["seq_q"] for each in data] == [8]


def test_trace_keeps_the_implementations_that_ended(
    run: Run, monkeypatch: pytest.MonkeyPatch, stopped: Stopped
) -> None:
    stop, code = stopped

    def trace_call(name: str, call: object, folder: object, **how: object) -> Traced:
        if name == "eager":
            stop()
        return Traced(name)

    monkeypatch.setattr(trace, "trace_call", trace_call)
    given = ("--batch", 1, "--heads", 1, "--head-dim", 8, "--seq", "8", "--against", "sdpa-math,eager")
    shown, data = shown_and_data(run, "trace", *given, code=code)
    assert shown.startswith("sdpa math")
    assert [each["name"] for each in data] == ["sdpa math"]
