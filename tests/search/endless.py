"""Searches one store for ever, a few configs further each time, and says what it submits and what is kept.

Run to be killed: ``python -m tests.search.endless FOLDER``.
"""

import sys
from pathlib import Path

from autotune.search import Limits, Silent, search
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Trial
from tests.search.synthetic import OPERATION, SHAPE, FakeExecutor, valid


def say(word: str, config: Config) -> None:
    print(word, PLACE[config], flush=True)


class Talkative(Silent):
    """Says which trials were acknowledged."""

    def on_trial(self, trial: Trial) -> None:
        say("kept", trial.config)


class TalkativeExecutor(FakeExecutor):
    """Says which configs were submitted."""

    def submit(self, config: Config) -> None:
        say("submitted", config)
        super().submit(config)


PLACE = {config: place for place, config in enumerate(valid(OPERATION))}


def main() -> None:
    store, limit = Store(Path(sys.argv[1])), 0
    while True:
        limit += 5
        executor = TalkativeExecutor()
        search(OPERATION, SHAPE, executor, store, limits=Limits(trials=limit), observer=Talkative())


if __name__ == "__main__":
    main()
