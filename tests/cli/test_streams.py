"""A command outlives who reads what it prints: it does its work, and its exit code tells of that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.table import Store
from autotune.trial import Stage
from tests.cli.conftest import Ran

# A search that takes its times from a sample and confirms nothing.
SEARCH = """
from unittest.mock import patch
from autotune.cli import main
from autotune.device import NVIDIA_H200
from autotune.executor.replay import ReplayExecutor
from autotune.tuning import tuner
from tests import sample

class Executor(ReplayExecutor):
    name = "gpu"

executor = Executor(NVIDIA_H200, sample.sweep(sample.shape(64)))
with patch.object(tuner, "open_executor", lambda *_: executor):
    main()
"""
CLOSED = "autotune: standard output was closed: the rest is not printed, the command still does its work\n"


def run_unread(home: Path, *command: str, stderr_too: bool = False) -> Ran:
    """Run Python with a standard output that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "AUTOTUNE_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    stderr = writer if stderr_too else subprocess.PIPE
    done = subprocess.run([sys.executable, *command], env=environment, stdout=writer, stderr=stderr, text=True)
    os.close(writer)
    return Ran(done.returncode, "", done.stderr or "")


@pytest.mark.parametrize(
    ("form", "stderr_too"), [((), False), (("--json",), True)], ids=["output of text", "output and error of JSON"]
)
def test_a_search_that_nobody_reads_still_keeps_its_winner(
    tmp_path: Path, form: tuple[str, ...], stderr_too: bool
) -> None:
    arguments = ("search", "--seq", "64", "--trials", "5", *form)
    ran = run_unread(tmp_path, "-c", SEARCH, *arguments, stderr_too=stderr_too)
    assert ran.code == 0
    if not stderr_too:
        assert ran.err.count(CLOSED) == 1
    trials = Store(tmp_path).trials("flash_attention")
    assert {trial.stage for trial in trials} == {Stage.SCREEN, Stage.RACE}


def test_a_reader_that_nobody_reads_ends_well_and_silently(tmp_path: Path) -> None:
    assert run_unread(tmp_path, "-m", "autotune", "show") == (0, "", "")


def test_output_that_cannot_be_written_fails_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "autotune", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "autotune: standard output: No space left on device\n")
