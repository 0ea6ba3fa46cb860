"""One search of the main shape as a process of its own: ``python -m benchmarks.live.cold_search STARTED``.

``STARTED`` is what the monotonic clock read just before this process was started: the budget runs from there. Prints
one line of JSON: the winner, and when what happened, in seconds from then.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autotune.executor.gpu import GpuExecutor
from autotune.search import Observer, SearchResult, search
from autotune.table import Store, home
from autotune.trial import Candidate, Trial
from benchmarks.live.problem import LIMITS, MAIN, operation


class Notes(Observer):
    """Notes when the first trial ended and the race began, and what the trials cost."""

    def __init__(self, started: float) -> None:
        self._started = started
        self.first_trial = self.race = 0.0
        self.compile_seconds: list[float] = []
        self.judge_seconds: list[float] = []

    def on_trial(self, trial: Trial) -> None:
        self.first_trial = self.first_trial or self.now()
        for seconds, noted in (
            (trial.outcome.compile_seconds, self.compile_seconds),
            (trial.outcome.judge_seconds, self.judge_seconds),
        ):
            if seconds:
                noted.append(seconds)

    def on_race(self, candidates: Sequence[Candidate]) -> None:
        self.race = self.now()

    def now(self) -> float:
        return time.monotonic() - self._started


def describe(result: SearchResult) -> dict[str, Any]:
    """Return the facts of a search as plain data."""
    winner = result.winner
    assert winner is not None
    assert winner.timing is not None
    return {
        "winner": dict(winner.config),
        "timing": asdict(winner.timing),
        "default_timing": None if winner.default_timing is None else asdict(winner.default_timing),
        "measured": result.measured,
        "statuses": dict(result.statuses),
        "ending": str(result.ending),
        "contended": result.contended,
    }


def main() -> None:
    """Entry of the process."""
    started = float(sys.argv[1])
    notes = Notes(started)
    imported = notes.now()
    executor = GpuExecutor()
    ready = notes.now()
    try:
        result = search(operation(), MAIN, executor, Store(home()), limits=LIMITS, observer=notes, started=started)
        stored = notes.now()
        times = {
            "imported": imported,
            "ready": ready,
            "first_trial": notes.first_trial,
            "race": notes.race,
            "stored": stored,
        }
        costs = {
            "jobs": executor.jobs.count,
            "compile_seconds": notes.compile_seconds,
            "judge_seconds": notes.judge_seconds,
        }
        print(json.dumps({**describe(result), "times": times, "costs": costs}), flush=True)
    finally:
        executor.close()


if __name__ == "__main__":
    main()
