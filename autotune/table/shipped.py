"""The tables that ship with the package: winners, recorded sweeps and grids, checked on every read."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar

from autotune.errors import TableError
from autotune.table.files import Checksums, read_checked, read_checksums, sha256, write_bytes, write_checksums
from autotune.table.order import in_order
from autotune.table.outsiders import Outsider, Table
from autotune.table.parquet import decode, encode, owner_of
from autotune.table.parts import OnDamaged, raise_damaged
from autotune.trial import Trial

RESULTS: Final = Path(__file__).parents[1] / "results"
GRIDS: Final = "grids"
SWEEPS: Final = "sweeps"
RESTORE: Final = "`git checkout -- results` in the clone, or installing the package again, brings it back"

T = TypeVar("T")
Read = Callable[[Path, str, bytes], T]  # of the folder, a path relative to it, and the bytes there


@dataclass(frozen=True, slots=True)
class Sweep:
    """A recorded sweep, not decoded until asked: a space measured exhaustively on one device.

    ``path`` is relative to ``results``; ``name`` is its last part without the suffix, ``device`` the device's slug.
    """

    operation: str
    implementation: str
    path: Path
    results: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def device(self) -> str:
        return self.path.parts[0]

    def trials(self) -> list[Trial]:
        """Return every trial of the sweep that is of today's space, oldest first; a damaged file raises TableError."""
        return _read_one(self.results, self.path.as_posix(), read_checksums(self.results), _decode_placed).trials


def shipped_winners(
    operation: str,
    *,
    implementation: str = "*",
    slug: str = "*",
    results: Path = RESULTS,
    on_damaged: OnDamaged = raise_damaged,
) -> list[Trial]:
    """Return the winners of an operation's implementations, or of one, on all devices that tables are shipped for, or
    on those of one slug.

    Here and below ``on_damaged`` is called with the error of each table that is refused; where it returns, the others
    are still read.

    Raises:
        TableError: by ``on_damaged``.
    """
    tables = read_listed(results, f"{slug}/{operation}/{implementation}.parquet", _decode_placed, on_damaged)
    return in_order(trial for table in tables for trial in table.trials)


def shipped_sweeps(
    operation: str, *, implementation: str = "", results: Path = RESULTS, on_damaged: OnDamaged = raise_damaged
) -> list[Sweep]:
    """Return the recorded sweeps of an operation's implementations, or of one, by path."""

    def describe(results: Path, name: str, data: bytes) -> Sweep:
        return Sweep(*owner_of(data, str(results / name), is_shipped=results == RESULTS), Path(name), results)

    sweeps = read_listed(results, f"*/{operation}/{SWEEPS}/*.parquet", describe, on_damaged)
    return [sweep for sweep in sweeps if implementation in ("", sweep.implementation)]


def shipped_grid(
    operation: str, *, implementation: str = "*", results: Path = RESULTS, on_damaged: OnDamaged = raise_damaged
) -> list[Trial]:
    """Return every trial of the grids of an operation's implementations, or of one, on all devices, oldest first.

    A grid has many shapes and a few configs of each: what portfolios and expected regrets are computed from.
    """
    tables = read_listed(results, f"*/{operation}/{GRIDS}/{implementation}.parquet", _decode_placed, on_damaged)
    return in_order(trial for table in tables for trial in table.trials)


def grid_path(trial: Trial) -> Path:
    """Return the place below ``results`` of the grid that a trial belongs to."""
    return Path(trial.device.slug) / trial.operation / GRIDS / f"{trial.implementation}.parquet"


def shipped_outsiders(
    operation: str, *, results: Path = RESULTS, on_damaged: OnDamaged = raise_damaged
) -> list[Outsider]:
    """Return the rows of an operation's shipped winners, sweeps and grids that are not of today's spaces."""
    patterns = (f"*/{operation}/*.parquet", f"*/{operation}/{SWEEPS}/*.parquet", f"*/{operation}/{GRIDS}/*.parquet")
    tables = [table for each in patterns for table in read_listed(results, each, _decode_placed, on_damaged)]
    return [outsider for table in tables for outsider in table.outsiders]


def is_shipped(folder: Path) -> bool:
    """Return True for a folder of tables that ship, here or in another clone, or one in it: ``SHA256SUMS`` lists them.

    A folder of the user's store that has such a list, of one implementation, counts too: it is no store either.
    """
    folder = folder.resolve()
    for place in (folder, *folder.parents[:2]):
        with suppress(TableError):  # a list of something else
            if any((place / name).is_relative_to(folder) for name in read_checksums(place)):
                return True
    return False


def write_shipped(path: Path, trials: Iterable[Trial], *, results: Path = RESULTS) -> None:
    """Write or replace a table below ``results`` and list it in ``SHA256SUMS``; for one recorder at a time.

    ``path`` is relative to ``results``: ``<device slug>/<operation>/<implementation>.parquet`` for winners,
    ``<device slug>/<operation>/sweeps/<implementation>_<sizes>.parquet`` for a sweep, ``grid_path`` for a grid. A
    reader finds the old table or the new one at any moment, and so does everyone after a crash.

    Raises:
        TableError: the path does not fit the trials, a value is impossible, or a file cannot be written.
    """
    name, rows, where = path.as_posix(), in_order(trials), str(results / path)
    _require_place(name, Table(rows, []), where)
    write_listed(name, encode(rows, where), results)


def write_listed(name: str, data: bytes, results: Path) -> None:
    """Write or replace a file below ``results`` and list its digest; both digests are listed in between."""
    checksums = read_checksums(results)
    digest = frozenset({sha256(data)})
    write_checksums(results, {**checksums, name: checksums.get(name, frozenset()) | digest})
    write_bytes(results / name, data)
    write_checksums(results, {**checksums, name: digest})


def read_listed(results: Path, pattern: str, read: Read[T], on_damaged: OnDamaged) -> list[T]:
    """Read what lies below ``results`` or is listed there and has such a path, in the order of the paths."""
    try:
        checksums = read_checksums(results)
    except TableError as error:
        on_damaged(TableError(f"{error}; {RESTORE}"))
        return []
    tables = []
    for name in _names(results, pattern, checksums):
        try:
            tables.append(_read_one(results, name, checksums, read))
        except TableError as error:
            on_damaged(error)
    return tables


def _names(results: Path, pattern: str, checksums: Checksums) -> list[str]:
    """List what lies below ``results`` or is listed there and has such a path, in order."""
    if "*" not in pattern:
        return [pattern] if pattern in checksums or os.path.lexists(results / pattern) else []
    found = {path.relative_to(results).as_posix() for path in results.glob(pattern)}
    tail = pattern.rpartition("*")[2]  # which mostly tells at once
    return sorted(found | {name for name in checksums if name.endswith(tail) and _fits(name, pattern)})


def _read_one(results: Path, name: str, checksums: Checksums, read: Read[T]) -> T:
    """Read what is listed; an error says how to get it back."""
    try:
        return read(results, name, read_checked(results, name, checksums))
    except TableError as error:
        if name not in checksums:  # nor is it in the clone
            raise
        raise TableError(f"{error}; {RESTORE}") from error


def _decode_placed(results: Path, name: str, data: bytes) -> Table:
    table = decode(data, str(results / name), is_shipped=results == RESULTS)
    _require_place(name, table, str(results / name))
    return table


def _require_place(name: str, table: Table, where: str) -> None:
    for slug, operation, implementation in table.places:
        folder = f"{slug}/{operation}"
        own = f"{implementation}.parquet"
        allowed = [f"{folder}/{own}", f"{folder}/{GRIDS}/{own}", f"{folder}/{SWEEPS}/{implementation}_*.parquet"]
        if not any(_fits(name, pattern) for pattern in allowed):
            found = f"{operation}/{implementation} on {slug}"
            raise TableError(f"{where}: holds {found}, which belongs at {' or '.join(allowed)}")


def _fits(name: str, pattern: str) -> bool:
    """Match a path with a pattern, folder by folder; a star alone would match across them."""
    found, wanted = name.split("/"), pattern.split("/")
    return len(found) == len(wanted) and all(
        have == want or want == "*" or ("*" in want and fnmatchcase(have, want))
        for have, want in zip(found, wanted, strict=True)
    )
