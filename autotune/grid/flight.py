"""A task that was handed to Ray: where it is, and if it still may end."""

import math
import time
from dataclasses import dataclass
from typing import Final

from autotune.grid.grid_task import GridTask
from autotune.grid.place import GridPlace

LOOKS: Final = 4  # at the place in the time after which a task has hung: its beginning is seen so much late at most

Owner = tuple[int, str] | None  # the number and token of the attempt that owns a task


@dataclass(slots=True)
class Flight:
    """One task on its way: it waits on its node for a GPU that another job holds, or it runs there.

    Only this host's own clock is asked: that of a worker may be minutes off.

    Attributes:
        before: the owner when it was handed over; any later one is an attempt of this flight.
        looked: when the place was last looked at, or it was handed over, by ``time.monotonic()``.
        owner: its attempt, as it was last seen.
        since: when that was first seen.
    """

    task: GridTask
    node: str
    before: Owner
    looked: float
    owner: Owner = None
    since: float = math.inf

    def has_hung(self, place: GridPlace) -> bool:
        """Return True if an attempt has run for longer than any does; asks the place now and then.

        That an attempt began is known from the place, as Ray does not tell it. Where a worker died, Ray begins another.

        Raises:
            TableError: the place cannot be read.
        """
        now, longest = time.monotonic(), self.task.longest_seconds
        if now - self.looked <= longest / LOOKS:
            return False
        owner = place.owner(self.task.key)
        self.looked = now
        if owner is None or (self.before is not None and owner <= self.before):
            return False
        if owner != self.owner:
            self.owner, self.since = owner, now
        return now - self.since > longest
