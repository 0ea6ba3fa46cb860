"""Observers: who is called as attempts at tasks begin and end, such as a live table."""

from typing import Protocol

from autotune.grid.attempt import Attempt, AttemptEnd
from autotune.grid.grid_task import GridTask


class GridObserver(Protocol):
    """Called by whatever runs a grid, from one thread, in the order in which things happen."""

    def on_begun(self, task: GridTask, attempt: Attempt) -> None:
        """Hear that an attempt at a task begins."""

    def on_ended(self, task: GridTask, ending: AttemptEnd) -> None:
        """Hear how an attempt at a task ended."""
