"""Finds the tasks of a grid that are done, for a run to leave out."""

import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from autotune.errors import TableError
from autotune.grid.attempt import AttemptEnd
from autotune.grid.place import TASKS, GridPlace
from autotune.table import warn_damaged

READERS: Final = 16  # an object store takes its time for each file
_ENDED: Final = re.compile(rf"{TASKS}/([0-9a-f]+)/[0-9a-f]+\.ended\.json")


def done_tasks(place: GridPlace, wanted: Collection[str]) -> dict[str, AttemptEnd]:
    """Return the endings of those tasks, named by their keys, that are done.

    A damaged record is warned of and passed over: its task is run again, which costs time and no row.

    Raises:
        TableError: the place cannot be read.
    """
    under = f"{TASKS}/{next(iter(wanted))}" if len(wanted) == 1 else TASKS
    found = ((name, _ENDED.fullmatch(name)) for name in place.folder.list(under))
    names = [name for name, match in found if match and match[1] in wanted]

    def read(name: str) -> list[AttemptEnd]:
        try:
            return place.records([name])[1]
        except TableError as error:
            warn_damaged(error)
            return []

    with ThreadPoolExecutor(READERS) as pool:
        return {each.task: each for ends in pool.map(read, names) for each in ends if each.state == "done"}
