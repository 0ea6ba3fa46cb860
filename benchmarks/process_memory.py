"""The memory of this process's descendants, by Linux's proportional set size: pages that some share count in parts."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WATCH_SECONDS: Final = 1.0


@dataclass
class Weights:
    """The largest memory of this process's descendants in MB.

    ``heaviest`` is the largest single one of the samples with more than ``many`` descendants; ``alone`` that of all
    samples, such as of a server before its first child, with nobody to share its libraries; ``total`` of all together.
    """

    heaviest: float = 0.0
    alone: float = 0.0
    total: float = 0.0


@contextmanager
def watched(many: int = 0) -> Iterator[Weights]:
    """Weigh all descendants of this process once a second."""
    found, done = Weights(), threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_SECONDS):
            weights = [proportional_mb(pid) for pid in descendants(os.getpid())]
            found.alone = max([found.alone, *weights])
            if len(weights) > many:
                found.heaviest = max([found.heaviest, *weights])
            found.total = max(found.total, sum(weights))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def descendants(pid: int) -> Iterator[int]:
    try:
        tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # gone meanwhile
        return
    for child in map(int, " ".join(tasks).split()):
        yield child
        yield from descendants(child)


def proportional_mb(pid: int) -> float:
    """Return a process's proportional set size; 0 for one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Pss:")), 0.0)
