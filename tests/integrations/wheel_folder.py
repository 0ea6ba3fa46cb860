"""Wheels that the environment has no room for, in a folder of a test's own, without what they require."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
INSTALL_SECONDS: Final = 180


def install(folder: Path, requirements: Sequence[str]) -> None:
    """Install into a folder; skip the test where the index does not have them, or takes too long."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run(
            [*command, "--target", str(folder), *requirements], capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{requirements[0]} was not installed within {INSTALL_SECONDS} s")
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        pytest.skip(f"{requirements[0]} cannot be installed here: {reason}")


def run_tests(folder: Path, tests: str) -> None:
    """Run a file of tests with the folder's packages; each must pass. What others warn of is no error."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "-W", "default", tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "skipped" not in done.stdout
