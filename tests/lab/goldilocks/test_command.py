"""``autotune analyze goldilocks``: its text, its figure and its refusals."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.lab.goldilocks import cpu_bench, exploration
from autotune.lab.goldilocks.exploration import Exploration, PointResult
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Timing
from tests.lab.stopping import Run, Stopped, assert_session, shown_and_data

SMALL = ("--batch", 1, "--heads", 2, "--seq", 16, "--head-dim", 8, "--against", "eager,sdpa-math")


def test_golden(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measurements are given: the third and fourth are beaten, the last one fails."""
    times = (200.0, 150.0, 2500.0, 4000.0, 90.0, 60.0)

    def measure(bench: cpu_bench.CpuBench, points: Sequence[Config]) -> Any:
        for point in points:
            number = len(seen)
            seen.append(point)
            if number == 5:
                yield PointResult(point, 4096, message="RuntimeError: no kernel")
                continue
            timing = Timing(times[number], 0.99 * times[number], 1.01 * times[number], 15)
            yield PointResult(point, 4096, timing, 1024 * (number + 1), 10.0 ** (number - 7))

    seen: list[Config] = []
    monkeypatch.setattr(cpu_bench.CpuBench, "measure", measure)
    monkeypatch.setattr("autotune.platforms.processor_name", lambda: "a CPU")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    given: tuple[tuple[object, ...], ...] = (
        ("--help",),
        (*SMALL, "--figure", "front.svg"),
        ("--figure", "front.jpg"),
        ("--figure", "front.svg", "--seq", "8,16"),
        ("--trials", "0"),
        ("--against", "cudnn"),
        ("--device", "cuda"),
    )
    commands = [("analyze", "goldilocks", *each) for each in given]
    assert_session(Path(__file__).with_name("golden.txt"), *((each, run(*each)) for each in commands))
    drawn = Path("front.svg").read_text(encoding="utf-8")
    assert "largest absolute error" in drawn
    assert "eager, bfloat16" in drawn
    assert drawn.count('class="ringed"') == 2 * 3  # in each panel; those that are beaten are pale


@pytest.mark.slow
def test_every_point_is_measured_where_all_fit(run: Run) -> None:
    (data,) = json.loads(run("analyze", "goldilocks", *SMALL, "--json").out)
    assert len(data["points"]) == data["valid_points"] == 6
    assert any(point["is_on_front"] for point in data["points"])
    assert set(data["hypervolume"]["reference"]) == {"time_us", "memory_bytes", "error"}


@pytest.mark.slow
def test_no_more_is_measured_than_asked_for(run: Run) -> None:
    (data,) = json.loads(run("analyze", "goldilocks", *SMALL, "--trials", 2, "--json").out)
    assert len(data["points"]) == 2


def test_an_interrupt_keeps_the_shapes_that_ended(run: Run, monkeypatch: pytest.MonkeyPatch, stopped: Stopped) -> None:
    stop, code = stopped

    def explore(operation: Any, shape: AttentionShape, bench: Any, **options: object) -> Exploration:
        if shape.seq_q == 16:
            stop()
        return Exploration(operation.name, shape, bench.device, bench.parameters, 6, (), (), (), 0.0, (), (), ())

    monkeypatch.setattr(exploration, "explore", explore)
    given = ("--batch", 1, "--heads", 1, "--head-dim", 8, "--seq", "8,16", "--against", "eager")
    shown, data = shown_and_data(run, "goldilocks", *given, code=code)
    assert "seq 8," in shown
    assert [each["shape"]["seq_q"] for each in data] == [8]
