"""The place of a grid's results, which all its hosts share: tables, and the attempts at its tasks.

::

    <place>/tables/<device slug>/<operation>/<implementation>/<sha256>.parquet
    <place>/tasks/<key>/<number>-<token>.begun.json
    <place>/tasks/<key>/<token>.ended.json

Files are written once and never changed, so hosts need no lock and every retry may write the same file again. An
attempt that ends removes tables of its own whose rows it has written together to another.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from autotune.errors import TableError
from autotune.grid.attempt import Attempt, AttemptEnd, decode_attempt, decode_ending, encode
from autotune.table.fetched import TABLES as TABLES  # below a place, where pulls look for them
from autotune.table.parts import OnDamaged, raise_damaged
from autotune.table.remote import Folder, open_folder

TASKS: Final = "tasks"
# Of a record: its task, the number of a beginning, the token, and which of the two it is.
RECORD_NAME: Final = re.compile(rf"{TASKS}/([0-9a-f]+)/(?:(\d+)-)?([0-9a-f]+)\.(begun|ended)\.json")


def absolute_place(uri: str | Path) -> str:
    """Return a place as all processes of this host name it: a local path from the root, a URI as it is."""
    return text if "://" in (text := str(uri)) else str(Path(text).expanduser().absolute())


class GridPlace:
    """The results of a grid at a local path or URI.

    Example:
        >>> place = GridPlace("s3://bucket/llama")
        >>> place.owner(task.key)
        (1, '9f0c3a5d1b6e7a42')
    """

    def __init__(self, uri: str | Path) -> None:
        self.folder: Folder = open_folder(uri)

    def __str__(self) -> str:
        return str(self.folder)

    def begin(self, attempt: Attempt) -> None:
        """Write that an attempt begins."""
        name = f"{TASKS}/{attempt.task}/{attempt.number}-{attempt.token}.begun.json"
        self.folder.write(name, encode(attempt))

    def end(self, ending: AttemptEnd) -> None:
        """Write how an attempt ended."""
        self.folder.write(f"{TASKS}/{ending.task}/{ending.token}.ended.json", encode(ending))

    def owner(self, task: str) -> tuple[int, str] | None:
        """Return the number and token of the attempt that owns a task, from names alone; None where none began."""
        found = (RECORD_NAME.fullmatch(name) for name in self.folder.list(f"{TASKS}/{task}"))
        return max(((int(each[2]), each[3]) for each in found if each and each[4] == "begun"), default=None)

    def records(
        self, names: Iterable[str] | None = None, *, on_damaged: OnDamaged = raise_damaged
    ) -> tuple[list[Attempt], list[AttemptEnd]]:
        """Return the attempts and endings of all tasks, or those in files of these names.

        Args:
            on_damaged: receives an error for each file that holds something else, which is then passed over.

        Raises:
            TableError: a file cannot be read.
        """
        attempts, endings = [], []
        for name in self.folder.list(TASKS) if names is None else names:
            if (found := RECORD_NAME.fullmatch(name)) is None:
                continue
            where, data = f"{self}/{name}", self.folder.read(name)
            try:
                if found[4] == "begun":
                    attempts.append(decode_attempt(data, where))
                else:
                    endings.append(decode_ending(data, where))
            except TableError as error:
                on_damaged(error)
        return attempts, endings
