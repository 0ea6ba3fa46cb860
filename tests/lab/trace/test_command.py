"""``autotune analyze trace``: its text, its files and its exit codes."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from autotune.lab.trace import profiling
from autotune.lab.trace.operator_times import OperatorTime
from autotune.lab.trace.profiling import Traced, TracedStep
from tests.lab.stopping import Run, Stopped, assert_session, shown_and_data

SMALL = ("--batch", 1, "--heads", 2, "--seq", 16, "--head-dim", 8, "--against", "eager,sdpa-math")


def test_golden(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Times are given."""

    def trace_call(name: str, call: object, folder: Path, *, device: str, **how: Any) -> Traced:
        steps = tuple(TracedStep(n, how["schedule"].phase(n), 12.5 / (n + 1)) for n in range(how["schedule"].steps))
        operators = (OperatorTime("aten::bmm", 6, 0.169, 0.378), OperatorTime("aten::mul", 3, 0.019, 0.043))
        return Traced(name, steps, operators, files=(folder / f"{name}.json.gz",))

    monkeypatch.setattr(profiling, "trace_call", trace_call)
    monkeypatch.setenv("COLUMNS", "100")
    given: tuple[tuple[object, ...], ...] = (
        ("--help",),
        (*SMALL, "--active", 1),
        (*SMALL[:-1], "eager,cudnn", "--seq", "8,16", "--active", 1, "--output", "out"),
        (*SMALL[:-1], "cudnn"),
        ("--device", "hpu"),
        ("--active", "0"),
        ("--against", "nobody"),
    )
    commands = [("analyze", "trace", *each) for each in given]
    assert_session(Path(__file__).with_name("golden.txt"), *((each, run(*each)) for each in commands))


def test_a_file_for_each_implementation(run: Run, tmp_path: Path) -> None:
    ran = run("analyze", "trace", *SMALL, "--output", tmp_path / "out", "--active", 2)
    assert ran.code == 0
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["eager.json.gz", "sdpa_math.json.gz"]
    with gzip.open(tmp_path / "out" / "eager.json.gz", "rt", encoding="utf-8") as file:
        assert json.load(file)["traceEvents"]
    steps = [line.split() for line in ran.out.splitlines() if line.rstrip().endswith(("active", "warm-up"))]
    assert [line[0] for line in steps] == ["0", "1", "2"] * 2


def test_a_trace_of_nothing_makes_no_folder(run: Run, tmp_path: Path) -> None:
    ran = run("analyze", "trace", *SMALL[:-1], "cudnn", "--output", tmp_path / "out")
    assert ran.code == 1
    assert ran.out == "not run: cudnn: needs an NVIDIA GPU, and none is here\n"
    assert not (tmp_path / "out").exists()


def test_traces_of_several_shapes_lie_apart(run: Run, tmp_path: Path) -> None:
    sizes = ("--batch", 1, "--heads", 1, "--seq", "8,16", "--head-dim", 8, "--active", 1)
    ran = run("analyze", "trace", *sizes, "--against", "eager", "--no-stacks", "--output", tmp_path, "--json")
    files = [Path(file) for traced in json.loads(ran.out) for file in traced["files"]]
    assert len({file.parent for file in files}) == 2
    assert all(file.exists() and file.parent.parent == tmp_path for file in files)


def test_an_interrupt_keeps_the_implementations_that_ended(
    run: Run, monkeypatch: pytest.MonkeyPatch, stopped: Stopped
) -> None:
    stop, code = stopped

    def trace_call(name: str, call: object, folder: object, **how: object) -> Traced:
        if name == "eager":
            stop()
        return Traced(name)

    monkeypatch.setattr(profiling, "trace_call", trace_call)
    given = ("--batch", 1, "--heads", 1, "--head-dim", 8, "--seq", "8", "--against", "sdpa-math,eager")
    shown, data = shown_and_data(run, "trace", *given, code=code)
    assert shown.startswith("sdpa math")
    assert [each["name"] for each in data] == ["sdpa math"]
