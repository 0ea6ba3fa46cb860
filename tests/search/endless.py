"""Searches one store in steps, a few configs further each time, and says what it submits and what is kept.

Run to be killed: ``python -m tests.search.endless FOLDER``.
"""

import itertools
import sys
from collections.abc import Iterable
from pathlib import Path

from autotune.search import Limits, Observer, search
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Candidate, Trial
from tests.search.synthetic import LARGE, SHAPE, SYNTHETIC, FakeExecutor, valid


def say(word: str, config: Config) -> None:
    print(word, PLACE[config], flush=True)


class Talkative(Observer):
    """Says which trials were acknowledged."""

    def on_trial(self, trial: Trial) -> None:
        say("kept", trial.config)


class TalkativeExecutor(FakeExecutor):
    """Says which configs were submitted."""

    def submit(self, candidate: Candidate) -> None:
        say("submitted", candidate.config)
        super().submit(candidate)


class Attentive(Observer):
    """Notes which trials were acknowledged."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def on_trial(self, trial: Trial) -> None:
        self.kept.append(PLACE[trial.config])


PLACE = {config: place for place, config in enumerate(valid(LARGE))}


def search_in_steps(folder: Path, steps: Iterable[int], seed: int) -> list[int]:
    """Search to each of these numbers of trials in turn; returns the places of what was acknowledged."""
    store, observer = Store(folder), Attentive()
    for step in steps:
        executor, limits = FakeExecutor(), Limits(trials=step)
        search(SYNTHETIC, SHAPE, executor, store, limits=limits, seed=seed, sampler="random", observer=observer)
    return observer.kept


def main() -> None:
    store = Store(Path(sys.argv[1]))
    for limit in itertools.count(5, 5):
        executor = TalkativeExecutor()
        search(SYNTHETIC, SHAPE, executor, store, limits=Limits(trials=limit), observer=Talkative())


if __name__ == "__main__":
    main()
