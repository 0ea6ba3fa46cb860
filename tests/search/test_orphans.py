"""A search that is killed, terminated or interrupted at any moment leaves no process behind, and loses no trial.

Nor is a child left whose parent is gone before it has imported what it needs.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.executor.messages import Interpret, OpenProblem, ProblemReference, encode
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Candidate, Policy
from tests.executor.processes import MARK, Processes
from tests.search.family import GRANDCHILD, OPERATION, SHAPE

ORPHAN_SECONDS: Final = 5.0
SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Python handles SIGINT alone; the system ends a process by the others, which the slow suite sends.
every_signal = pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=[pytest.mark.slow] * (number is not signal.SIGINT)) for number in SIGNALS],
    ids=lambda number: number.name,
)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """The processes that the test starts; whoever outlives it is ended."""
    mark = os.urandom(8).hex()
    monkeypatch.setenv(MARK, mark)
    processes = Processes(mark)
    yield processes
    for pid in processes.living():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def family(processes: Processes, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A search with all its children; their last words go to a file, so that no pipe is held open by them."""
    with (
        (tmp_path / "stderr").open("wb") as last_words,
        subprocess.Popen(
            [sys.executable, "-m", "tests.search.family", str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=last_words,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        ) as process,
    ):
        yield process
        process.kill()


def grandchildren(processes: Processes) -> set[int]:
    return {pid for pid in processes.living() if _arguments(pid) == GRANDCHILD}


def _arguments(pid: int) -> tuple[str, ...]:
    try:
        return tuple(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1])
    except OSError:  # gone meanwhile
        return ()


def survivors(processes: Processes) -> dict[int, str]:
    """Who is still there when the time is over."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while (living := processes.living()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return {pid: " ".join(_arguments(pid))[:80] for pid in living}


@every_signal
@pytest.mark.slow
def test_a_search_that_is_stopped_while_it_starts_leaves_nobody(
    family: "subprocess.Popen[str]", processes: Processes, number: signal.Signals
) -> None:
    time.sleep(random.Random(number).uniform(0.0, 3.0))  # imports, the worker's greeting, the server's imports
    family.send_signal(number)
    assert survivors(processes) == {}


@every_signal
def test_a_search_that_is_stopped_leaves_nobody_and_loses_nothing(
    family: "subprocess.Popen[str]", processes: Processes, tmp_path: Path, number: signal.Signals
) -> None:
    generator = random.Random(number)
    assert family.stdout is not None
    said = [family.stdout.readline() for _ in range(generator.randint(1, 5))]
    processes.wait_until(lambda _: bool(grandchildren(processes)))
    time.sleep(generator.uniform(0.0, 0.2))
    family.send_signal(number)
    assert survivors(processes) == {}
    said += family.stdout
    kept = {trial.number for trial in Store(tmp_path / "store").trials(OPERATION.name)}
    assert {int(line) for line in said if line.endswith("\n")} <= kept


# Starts a child that finds modules in a folder first, sends it messages, and waits.
PARENT: Final = """
import json, sys
from autotune.executor.child import Child
folder, arguments, messages = sys.argv[1], *map(json.loads, sys.argv[2:])
sys.path.insert(0, folder)
child = Child(*arguments)
for message in messages:
    child.send(message)
child.receive(600.0)
"""
# A module whose import never ends, and that says when it is begun.
ENDLESS: Final = """
import time
from pathlib import Path
Path(__file__).with_name("begun").touch()
time.sleep(600)
"""
INTERPRETER: Final = "autotune.executor.interpreter"
WORKER: Final = ("autotune.executor.worker", json.dumps({"policy": asdict(Policy()), "index": 0}))
COMPILE_SERVER: Final = (
    "autotune.executor.compile_server",
    json.dumps({"device": asdict(NVIDIA_H200), "jobs": 1, "timeout": 1.0}),
)


def _open(child: str, number: int, module: str) -> dict[str, Any]:
    """A request to open a problem with the operation of that module."""
    problem = ProblemReference(module, f"{module}:OPERATION", {}, SHAPE.as_dict())
    if child == INTERPRETER:
        return encode(Interpret(problem, Candidate("none", Config())))
    return encode(OpenProblem(number, problem))


@pytest.mark.parametrize(
    ("arguments", "opened", "endless"),
    [
        (WORKER, (), "torch"),
        pytest.param(COMPILE_SERVER, (), "triton", marks=pytest.mark.slow),
        ((INTERPRETER,), ("kernel",), "kernel"),
        pytest.param(COMPILE_SERVER, ("kernel",), "kernel", marks=pytest.mark.slow),
        pytest.param(COMPILE_SERVER, ("quick", "kernel"), "kernel", marks=pytest.mark.slow),
    ],
    ids=["worker", "compile server", "interpreter opens", "compile server opens", "compile server opens another"],
)
def test_a_child_whose_parent_is_killed_imports_nothing_more(
    processes: Processes, tmp_path: Path, arguments: tuple[str, ...], opened: tuple[str, ...], endless: str
) -> None:
    """Of its libraries or of the problem that it opens: either takes seconds, in which it reads no end of its input."""
    (tmp_path / "quick.py").write_text("from autotune.search_spaces.flash_attention.operation import OPERATION")
    (tmp_path / f"{endless}.py").write_text(ENDLESS)
    messages = [_open(arguments[0], number, module) for number, module in enumerate(opened)]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), json.dumps(arguments), json.dumps(messages)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as parent:
        try:
            processes.wait_until(lambda _: (tmp_path / "begun").exists())
        finally:
            parent.kill()
    assert survivors(processes) == {}
