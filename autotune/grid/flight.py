"""A task that was handed to Ray: where it is, and if it still may end."""

import time
from dataclasses import dataclass

from autotune.grid.grid_task import GridTask
from autotune.grid.place import GridPlace


@dataclass(slots=True)
class Flight:
    """One task on its way: it waits on its node for a GPU that another job holds, or it runs there.

    Attributes:
        submitted: when it was handed over, in seconds since the epoch.
        looked: when it was last known not to have hung, by ``time.monotonic()``.
    """

    task: GridTask
    node: str
    submitted: float
    looked: float

    def has_hung(self, place: GridPlace) -> bool:
        """Return True if an attempt has run for longer than any does; asks the place where it may be so.

        Its attempt says when it began, which Ray does not. Where a worker died, Ray begins another.

        Raises:
            TableError: the place cannot be read.
        """
        now, longest = time.monotonic(), self.task.longest_seconds
        if now - self.looked <= longest:
            return False
        begun = place.last_begun(self.task.key)
        running = 0.0 if begun is None or begun < self.submitted else time.time() - begun
        if running > longest:
            return True
        self.looked = now - running
        return False
