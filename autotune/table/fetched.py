"""Tables of a place, copied to this machine by many readers at once: an object store takes its time for each."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from autotune.errors import TableError
from autotune.table.files import SUMS_NAME, write_bytes
from autotune.table.parts import SUFFIX
from autotune.table.remote import Folder

TABLES: Final = "tables"  # below a grid's place
READERS: Final = 16

T = TypeVar("T")
R = TypeVar("R")


def at_once(act: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the result of each call, in the order of the items; several run at once."""
    with ThreadPoolExecutor(READERS) as readers:
        yield from readers.map(act, items)


def table_names(source: Folder) -> list[str]:
    """Return the names of all files of a place that may belong to its tables: a grid's, or a folder of tables."""
    return source.list(TABLES) or source.list()


def fetch_tables(source: Folder, folder: Path) -> int:
    """Copy the tables of a place and the lists that vouch for them, each under its name; return how many tables.

    Nothing is checked: who reads the copies does so.

    Raises:
        TableError: the place cannot be read or has no tables, or a copy cannot be written.
    """
    names = [name for name in table_names(source) if name.endswith(SUFFIX) or name.rpartition("/")[2] == SUMS_NAME]

    def fetch(name: str) -> None:
        write_bytes(folder / name, source.read(name))

    if not any(name.endswith(SUFFIX) for name in names):
        raise TableError(f"{source}: no tables there; expected a grid's place, or a folder of tables")
    for _ in at_once(fetch, names):
        pass
    return sum(name.endswith(SUFFIX) for name in names)
