"""A search that is killed, terminated or interrupted at any moment leaves no process behind, and loses no trial."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from autotune.table import Store
from tests.executor.processes import MARK, Processes
from tests.search.family import GRANDCHILD, OPERATION

ORPHAN_SECONDS: Final = 5.0
SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
every_signal = pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """What the test starts; whoever outlives it is ended."""
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
