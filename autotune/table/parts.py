"""Parts: files of trials that are written once, named by their digest, and merged into fewer."""

import itertools
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.errors import TableError
from autotune.table import first_release
from autotune.table.files import list_folder, read_bytes, sha256, size_bytes, write_bytes
from autotune.table.outsiders import Table
from autotune.table.parquet import decode

SUFFIX: Final = ".parquet"
COMPACT_BYTES: Final = 8 * 2**20  # parts are merged up to this size, a quarter of what a reader takes
MAX_LISTINGS: Final = 100
KEPT: Final = "every trial reported before is kept: make room there, and the same command goes on where it stopped"

OnDamaged = Callable[[TableError], None]


@contextmanager
def saying_what_is_kept() -> Iterator[None]:
    """Add to the message of a write that fails that no row is lost."""
    try:
        yield
    except TableError as error:
        raise TableError(f"{error}; {KEPT}") from error.__cause__


def raise_damaged(error: TableError) -> None:
    """Refuse the whole table because of one damaged part: for a search, which must not silently forget."""
    raise error


@dataclass(frozen=True, slots=True)
class Shelf:
    """The parts of one implementation, measured on devices of one name; ``device`` is the folder of these."""

    device: Path
    operation: str
    implementation: str

    @property
    def folder(self) -> Path:
        """The folder that parts are written to."""
        return self.device / self.operation / self.implementation

    def parts(self, on_damaged: OnDamaged = raise_damaged) -> list[Path]:
        """List the parts, those of the first release too."""
        then = first_release.operation_then(self.operation, self.implementation)
        folders = [self.folder] if then is None else [self.folder, self.device / then]
        return [path for folder in folders for path in list_or_report(folder, on_damaged) if path.suffix == SUFFIX]

    def small_parts(self) -> list[Path]:
        """List the smallest parts that together stay below the limit of one merged part."""
        sizes = {path: size_bytes(path) for path in self.parts()}
        smallest = sorted(sizes, key=lambda path: (sizes[path], path))
        totals = itertools.accumulate(sizes[path] for path in smallest)
        return [path for path, total in zip(smallest, totals, strict=True) if total <= COMPACT_BYTES]

    def part_of(self, data: bytes) -> Path:
        """Return the part that holds the bytes of a table, once they are written."""
        return self.folder / f"{sha256(data)}{SUFFIX}"

    def write(self, data: bytes) -> Path:
        """Keep the bytes of a table; on disk once this returns. Return the new part."""
        with saying_what_is_kept():
            write_bytes(path := self.part_of(data), data)
        return path

    def read(
        self, on_damaged: OnDamaged, *, known: Mapping[Path, Table] | None = None, races_only: bool = False
    ) -> dict[Path, Table]:
        """Read every part that is not known, however many others write and compact meanwhile.

        A listing that runs during a compaction may miss both the small parts and the merged one, so parts are listed
        until none has vanished since the listing before. Damaged parts are left out.
        """
        tables: dict[Path, Table | None] = {**(known or {})}
        listed: set[Path] | None = None
        for _ in range(MAX_LISTINGS):
            previous, listed = listed, set(self.parts(on_damaged))
            for path in sorted(listed - tables.keys()):
                try:
                    if (table := self.read_part(path, races_only=races_only)) is not None:
                        tables[path] = table
                except TableError as error:
                    on_damaged(error)
                    tables[path] = None
            if previous is not None and previous <= listed <= tables.keys():
                break
        else:
            on_damaged(TableError(f"{self.folder}: cannot be read: its parts keep vanishing"))
        return {path: table for path, table in tables.items() if table is not None}

    def read_part(self, path: Path, *, races_only: bool = False) -> Table | None:
        """Read a part, or return None if it is gone: then it was compacted, and its rows stand in a newer part."""
        try:
            data = read_bytes(path)
        except TableError as error:
            if isinstance(error.__cause__, FileNotFoundError) and not path.is_symlink():
                return None
            raise
        try:
            if sha256(data) != path.stem:
                raise TableError(f"{path}: damaged: its SHA-256 is not its name")
            return self._placed(path, decode(data, str(path), races_only=races_only))
        except TableError as error:
            name = shlex.quote(str(path))
            raise TableError(f"{error}; `mv {name} {name}.damaged` sets it aside, and no other row is lost") from error

    def _placed(self, path: Path, table: Table) -> Table:
        for place in table.places:
            if place != (self.device.name, self.operation, self.implementation):
                raise TableError(f"{path}: holds {'/'.join(place)}, which belongs in another folder")
        return table


def list_or_report(folder: Path, on_damaged: OnDamaged) -> list[Path]:
    """List a folder; one that cannot be listed is reported and counts as empty."""
    try:
        return list_folder(folder)
    except TableError as error:
        on_damaged(error)
        return []
