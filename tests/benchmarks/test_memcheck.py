"""Memcheck: parts of the winners by processes at once, and how a failure of one is told."""

import sys
from pathlib import Path

import pytest

from benchmarks import memcheck

# Stands for the sanitizer: notes the part that it was given, and ends as that part is told to.
WATCH = [
    sys.executable,
    "-c",
    "import os, signal, sys\n"
    "part = sys.argv[-1]\n"
    "open(os.path.join(os.environ['PARTS'], part.replace('/', '-')), 'w').close()\n"
    "if part == os.environ['KILLED']: os.kill(os.getpid(), signal.SIGKILL)\n"
    "sys.exit(part == os.environ['FAILS'])",
]


@pytest.mark.parametrize(
    ("fails", "killed", "code"), [("none", "none", 0), ("2/3", "none", 1), ("none", "3/3", 1), ("1/3", "3/3", 1)]
)
def test_every_part_runs_and_one_that_fails_or_is_killed_fails_all(
    fails: str, killed: str, code: int, tmp_path: Path
) -> None:
    environment = {"PARTS": str(tmp_path), "FAILS": fails, "KILLED": killed}
    assert memcheck.run_parts(WATCH, ["flash_attention"], 3, environment) == code
    assert {each.name for each in tmp_path.iterdir()} == {"1-3", "2-3", "3-3"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--jobs", "0"], "argument --jobs: '0' is not allowed; expected a number from 1 on"),
        (["nope"], "'nope' is unknown; allowed: "),
    ],
)
def test_bad_arguments_are_refused_before_a_gpu_is_asked_for(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        memcheck.main(words)
    assert problem in capsys.readouterr().err
