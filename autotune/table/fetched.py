"""Tables of a place, copied to this machine by many readers at once: an object store takes its time for each."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from autotune.errors import TableError
from autotune.table.files import SUMS_NAME, write_bytes
from autotune.table.parts import MAX_LISTINGS, SUFFIX
from autotune.table.remote import Folder

TABLES: Final = "tables"  # below a grid's place
READERS: Final = 16

T = TypeVar("T")
R = TypeVar("R")


def at_once(act: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the result of each call, in the order of the items; several run at once."""
    with ThreadPoolExecutor(READERS) as readers:
        yield from readers.map(act, items)


def file_names(source: Folder) -> list[str]:
    """Return the names of all files of a place that may belong to its tables: a grid's, or a folder of tables."""
    return source.list(TABLES) or source.list()


def fetch_tables(source: Folder, folder: Path) -> list[TableError]:
    """Copy the tables of a place and the lists that vouch for them, each under its name.

    Nothing is checked: who reads the copies does so. Where a file went meanwhile, as in a store that is compacted, what
    took its place is copied too. Returned are the errors of files that are there and cannot be read.

    Raises:
        TableError: the place cannot be listed or has no tables, or a copy cannot be written.
    """
    found: dict[str, TableError | None] = {}  # by the names of files that were asked for

    def fetch(name: str) -> tuple[str, TableError | None]:
        try:
            data = source.read(name)
        except TableError as error:
            return name, error
        write_bytes(folder / name, data)
        return name, None

    for _ in range(MAX_LISTINGS):
        names = [name for name in file_names(source) if _belongs(name)]
        if not any(name.endswith(SUFFIX) for name in names):
            raise TableError(f"{source}: no tables there; expected a grid's place, or a folder of tables")
        found = {name: error for name, error in found.items() if error is None or name in names}
        if not (left := [name for name in names if name not in found]):
            break
        found |= at_once(fetch, left)
    return [error for error in found.values() if error is not None]


def _belongs(name: str) -> bool:
    return name.endswith(SUFFIX) or name.rpartition("/")[2] == SUMS_NAME
