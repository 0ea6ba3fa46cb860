"""Many searches killed at any moment of their lives lose nothing that was reported."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORM = 50


@pytest.mark.slow
def test_a_storm_of_kills_loses_nothing() -> None:
    """``benchmarks.kill_storm``, in a process of its own: it forks, which a process with threads must not."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kill_storm", "--kills", str(STORM)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kills = int(done.stdout.split()[0])
    assert kills >= STORM
    assert "0 lost, 0 unreadable" in done.stdout
