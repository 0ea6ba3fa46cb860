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


def test_jobs_are_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        memcheck.main(["--jobs", "0"])
    assert "argument --jobs: 0 is not allowed; expected 1 or more" in capsys.readouterr().err
