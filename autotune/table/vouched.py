"""Tables of any folder, a store or ``results``: found, vouched for by their SHA-256, and read once."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.errors import TableError
from autotune.table.comparisons import holds_comparisons
from autotune.table.compilations import COMPILATIONS
from autotune.table.files import SUMS_NAME, read_bytes, read_checked, read_checksums, sha256
from autotune.table.order import in_order
from autotune.table.outsiders import Table
from autotune.table.parquet import decode
from autotune.table.parts import DIGEST, SUFFIX, OnDamaged
from autotune.table.portfolios import PORTFOLIOS
from autotune.table.shipped import GRIDS, SWEEPS
from autotune.trial import Trial

DEPTH: Final = 4  # of what a list names, below its folder, as results has its sweeps
COMPUTED: Final = (COMPILATIONS, PORTFOLIOS)  # folders of tables that hold no trials


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table and its file: the path, the bytes, and the rows."""

    path: Path
    data: bytes
    table: Table

    @property
    def is_recording(self) -> bool:
        """Return True for a sweep or a grid that ships: dated recordings, of which nothing is served."""
        return is_recording(self.path)


def is_recording(path: Path) -> bool:
    """Return True for a file in a folder of sweeps or of grids that ship."""
    return path.parent.name in (SWEEPS, GRIDS)


def read_files(sources: Iterable[Path], refuse: OnDamaged) -> Iterator[TableFile]:
    """Read tables of trials: files, and all of these below folders, each folder's in the order of their paths.

    Below folders all but these are passed over: hidden files and folders, comparisons of ``autotune bench``, and the
    folders of ``COMPUTED``, whose files ``read_computed`` reads. What a list names and is not there is not missed
    (``check_listed``).

    ``refuse`` is called with the error of each file that nothing vouches for, that is damaged or foreign, and of a
    folder that cannot be listed.
    """
    for path in (path for source in sources for path in tables_of(source, refuse)):
        try:
            data = vouched_bytes(path)
            table = decode(data, str(path))
        except TableError as error:
            if not is_comparison(path):
                refuse(error)
        else:
            yield TableFile(path, data, table)


def trials_of(files: Iterable[TableFile]) -> list[Trial]:
    """Return every distinct trial of files that is of today's spaces, oldest first."""
    return in_order(trial for file in files for trial in file.table.trials)


def tables_of(source: Path, refuse: OnDamaged) -> Iterator[Path]:
    """List the tables of trials below a folder, or what may be some; a file is itself."""
    if not source.is_dir():
        yield source
        return
    yield from (path for path in files_below(source, refuse) if path.suffix == SUFFIX and not is_computed(path, source))


def is_computed(path: Path, source: Path) -> bool:
    """Return True for a file in a folder of ``COMPUTED`` that lies below the source."""
    return path.parent != source and path.parent.name in COMPUTED


def files_below(source: Path, refuse: OnDamaged) -> Iterator[Path]:
    """List every file below a folder, those of each folder in order; hidden files and folders are passed over."""
    walk = os.walk(source, onerror=lambda e: refuse(TableError(f"{e.filename}: cannot be listed: {e.strerror}")))
    for folder, subfolders, names in walk:
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def is_comparison(path: Path) -> bool:
    """Return True for what ``autotune bench`` wrote: it lies beside the tables that ship, and holds no trials."""
    try:
        return holds_comparisons(read_bytes(path))
    except TableError:
        return False


def vouched_bytes(path: Path) -> bytes:
    """Read a table whose bytes are what its name or the nearest list above it says."""
    if DIGEST.fullmatch(path.stem):
        data = read_bytes(path)
        if (digest := sha256(data)) != path.stem:
            raise TableError(f"{path}: damaged: its SHA-256 is {digest}")
        return data
    for folder in path.absolute().parents[:DEPTH]:
        if checksums := read_checksums(folder):
            return read_checked(folder, path.absolute().relative_to(folder).as_posix(), checksums)
    read_bytes(path)  # a file that is not there at all is the better reason
    repair = f"name it by its SHA-256, list it in a {SUMS_NAME} above it, or check it by `autotune tables import`"
    raise TableError(f"{path}: nothing vouches for it: {repair}")
