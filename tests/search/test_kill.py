"""SIGKILL at any moment loses no trial that was reported, and the next run continues."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from autotune.search import Limits, search
from autotune.table import Store
from autotune.trial import Stage
from tests.search.endless import PLACE
from tests.search.synthetic import LARGE, SHAPE, SYNTHETIC, FakeExecutor

KILLS = 4  # of real processes, each of which imports everything


def _run_and_kill(folder: Path, lines: int, seconds: float) -> list[tuple[str, int]]:
    """Start the endless search, let it say so many lines, and kill it a moment later; returns all that it said."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.search.endless", str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        time.sleep(seconds)  # any moment: between two messages, in a write, in a compaction
        process.kill()
        said += process.stdout
    assert process.returncode == -signal.SIGKILL
    return [(word, int(place)) for word, place in map(str.split, said)]


@pytest.mark.slow
def test_killed_searches_lose_nothing_and_continue(tmp_path: Path) -> None:
    generator = random.Random(0)
    store = Store(tmp_path)
    submitted: Counter[int] = Counter()
    kept: set[int] = set()
    for _ in range(KILLS):
        said = _run_and_kill(tmp_path, generator.randint(1, 30), generator.uniform(0.0, 0.02))
        places = [place for word, place in said if word == "submitted"]
        assert kept.isdisjoint(places)  # what was acknowledged is never measured again
        assert len(set(places)) == len(places)
        submitted.update(places)
        kept |= {place for word, place in said if word == "kept"}
        stored = {PLACE[trial.config] for trial in store.trials(LARGE.operation) if trial.stage is Stage.SCREEN}
        assert kept <= stored <= submitted.keys()
    assert len(kept) >= KILLS
    assert submitted.total() - len(submitted) <= KILLS  # measured twice: at most what was in flight
    assert len(stored - kept) <= KILLS
    executor = FakeExecutor()
    result = search(SYNTHETIC, SHAPE, executor, store, limits=Limits(trials=len(stored) + 5))
    assert (result.interrupted, result.resumed, result.measured) == (False, len(stored), 5)
    assert result.winner is not None
    assert stored.isdisjoint(PLACE[config] for config in executor.submitted)
