"""Files of what is computed from trials or without a GPU, below any folder: found, vouched for, and read once."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from autotune.errors import TableError
from autotune.table.compilations import COMPILATIONS, Compilation
from autotune.table.compilations import FORMAT as COMPILATIONS_FORMAT
from autotune.table.parts import SUFFIX, OnDamaged
from autotune.table.portfolios import FORMAT as PORTFOLIO_FORMAT
from autotune.table.portfolios import PORTFOLIOS, Assignment
from autotune.table.row_format import RowFormat
from autotune.table.vouched import files_below, is_computed, vouched_bytes

FORMATS: Final[dict[str, RowFormat[Any]]] = {COMPILATIONS: COMPILATIONS_FORMAT, PORTFOLIOS: PORTFOLIO_FORMAT}


@dataclass(frozen=True, slots=True)
class ComputedFile:
    """A file of portfolios or compilations: the folder's name that tells which, its path, bytes, and rows of today."""

    kind: str
    path: Path
    data: bytes
    rows: tuple[Assignment | Compilation, ...]


def read_computed(source: Path, refuse: OnDamaged) -> Iterator[ComputedFile]:
    """Read every portfolio and every file of compilations below a folder.

    ``refuse`` is called with the error of each that nothing vouches for, that is damaged, foreign or misplaced.
    """
    for path in files_below(source, lambda error: None):  # which who reads the tables of trials is told
        if path.suffix != SUFFIX or not is_computed(path, source):
            continue
        kind = path.parent.name
        try:
            data = vouched_bytes(path)
            yield ComputedFile(kind, path, data, tuple(FORMATS[kind].decode_placed(data, path)))
        except TableError as error:
            refuse(error)
