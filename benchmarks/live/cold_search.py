"""One search of the main shape as a process of its own: ``python -m benchmarks.live.cold_search STARTED``.

``STARTED`` is the monotonic clock's time just before this process was started: the budget runs from there. Prints one
line of JSON: the winner, and the seconds from then to each event.
"""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

from autotune.executor.gpu import GpuExecutor
from autotune.search import Observer, search
from autotune.table import Store, home
from autotune.trial import Candidate, Trial
from benchmarks.live.problem import ATTENTION, LIMITS, MAIN


class Notes(Observer):
    """Notes the seconds to each event, and the costs of all trials."""

    def __init__(self, started: float) -> None:
        self._started = started
        self.times = dict.fromkeys(("imported", "ready", "first_trial", "race", "stored"), 0.0)
        self.costs: dict[str, list[float]] = {"compile_seconds": [], "judge_seconds": []}

    def on_trial(self, trial: Trial) -> None:
        if not self.times["first_trial"]:
            self.note("first_trial")
        for name, noted in self.costs.items():
            if seconds := getattr(trial.outcome, name):
                noted.append(seconds)

    def on_race(self, candidates: Sequence[Candidate]) -> None:
        self.note("race")

    def note(self, event: str) -> None:
        self.times[event] = time.monotonic() - self._started


def main() -> None:
    started = float(sys.argv[1])
    notes = Notes(started)
    notes.note("imported")
    with closing(GpuExecutor()) as executor:
        notes.note("ready")
        result = search(ATTENTION, MAIN, executor, Store(home()), limits=LIMITS, observer=notes, started=started)
        notes.note("stored")
        winner = result.winner
        assert winner is not None
        assert winner.timing is not None
        found = {
            "winner": dict(winner.config),
            "timing": asdict(winner.timing),
            "default_timing": None if winner.default_timing is None else asdict(winner.default_timing),
            "measured": result.measured,
            "statuses": dict(result.statuses),
            "ending": str(result.ending),
            "contended": result.contended,
            "times": notes.times,
            "costs": {"jobs": executor.jobs.count, **notes.costs},
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
