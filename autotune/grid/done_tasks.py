"""Finds the tasks of a grid that are done, for a run to leave out."""

import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from autotune.errors import TableError
from autotune.grid.attempt import AnsweredBy, AttemptEnd
from autotune.grid.place import RECORD_NAME, TASKS, GridPlace
from autotune.table import warn_damaged

READERS: Final = 16  # an object store takes its time for each file


def done_tasks(place: GridPlace, wanted: Collection[str], executor: AnsweredBy) -> dict[str, AttemptEnd]:
    """Return the endings of those tasks, named by their keys, that are done by attempts on this executor.

    A damaged record is warned of and passed over: its task is run again, which costs time and no row.

    Raises:
        TableError: the place cannot be read.
    """
    under = f"{TASKS}/{next(iter(wanted))}" if len(wanted) == 1 else TASKS
    names = map(RECORD_NAME.fullmatch, place.folder.list(under))
    found = [match for match in names if match and match[1] in wanted]
    begun = {(match[1], match[3]): match[0] for match in found if match[4] == "begun"}

    def read(match: re.Match[str]) -> list[AttemptEnd]:
        try:
            done = [end for end in place.records([match[0]])[1] if end.state == "done"]
            if not done or (beginning := begun.get((match[1], match[3]))) is None:
                return []
            return done if place.records([beginning])[0][0].executor == executor else []
        except TableError as error:
            warn_damaged(error)
            return []

    with ThreadPoolExecutor(READERS) as pool:
        ended = pool.map(read, (match for match in found if match[4] == "ended"))
        return {each.task: each for ends in ended for each in ends}
