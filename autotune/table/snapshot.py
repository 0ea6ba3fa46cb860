"""Snapshots: the winners among parts, kept beside them, so that serving need not read every trial ever made.

A snapshot is a table of winners and a ``SHA256SUMS`` that lists it with the parts that it covers. It counts only while
all these are there and today's space is the one that it was made for; any other is passed over. So a writer that is
killed, or two at once, cost time and never a row.
"""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from autotune.errors import TableError
from autotune.table.checksums import read_checksums, write_checksums
from autotune.table.files import list_folder, read_bytes, remove, sha256, write_bytes
from autotune.table.outsiders import Table
from autotune.table.parquet import decode, encode
from autotune.table.parts import OnDamaged, Shelf, saying_what_is_kept
from autotune.table.schema import TableSchema, schema_named
from autotune.table.winners import TIE_RATIO, winners
from autotune.trial import Trial

SUFFIX: Final = ".snapshot"
_NOTHING: Final = Table([], [])


def read_races(shelf: Shelf, on_damaged: OnDamaged) -> list[Trial]:
    """Return the rows of a shelf that may win: those of the snapshot, and of the parts that it does not cover."""
    covered, found = _read(shelf)
    tables = shelf.read(on_damaged, known=dict.fromkeys(covered, _NOTHING), races_only=True)
    return [*found, *(trial for table in tables.values() for trial in table.trials)]


def write(shelf: Shelf, going: Collection[Path] = ()) -> None:
    """Replace the snapshot by one that covers all sound parts but those that will be removed.

    Parts with outsiders are not covered: their rows may be of the space again one day.
    """
    covered, found = _read(shelf)
    damaged: list[TableError] = []  # left uncovered, for readers to find
    tables = shelf.read(damaged.append, known=dict.fromkeys(covered, _NOTHING), races_only=True)
    sound = {
        path: table.trials for path, table in tables.items() if not table.outsiders and path.parent == shelf.folder
    }
    kept = sound.keys() - set(going)
    found = winners([*found, *(trial for trials in sound.values() for trial in trials)])
    if kept == covered or not found:
        return
    data = encode(found, str(shelf.folder))
    name = f"{_prefix(shelf)}{sha256(data)[:16]}{SUFFIX}"
    listed = {path.name: frozenset({path.stem}) for path in kept}
    with saying_what_is_kept():
        write_bytes(shelf.folder / name, data)
        write_checksums(shelf.folder, {**listed, name: frozenset({sha256(data)})})
    for path in list_folder(shelf.folder):
        if path.suffix == SUFFIX and path.name != name:
            with suppress(TableError):  # an old one is never read
                remove(path)


def _read(shelf: Shelf) -> tuple[frozenset[Path], list[Trial]]:
    """Return the parts that the snapshot covers, all of them there, and their winners; nothing where it is no use."""
    try:
        listed = {shelf.folder / name: digests for name, digests in read_checksums(shelf.folder).items()}
        (path,) = (path for path in listed if path.name.startswith(_prefix(shelf)) and path.suffix == SUFFIX)
        (digest,) = listed.pop(path)
        if listed.keys() <= set(list_folder(shelf.folder)) and sha256(data := read_bytes(path)) == digest:
            table = decode(data, str(path))
            if not table.outsiders:
                return frozenset(listed), table.trials
    except (TableError, ValueError):
        pass
    return frozenset(), []


def _prefix(shelf: Shelf) -> str:
    """Return how the name of a snapshot of today's space and rule begins."""
    schema = schema_named(shelf.operation, shelf.implementation)
    fingerprint = schema.fingerprint if isinstance(schema, TableSchema) else ""
    return f"winners-{fingerprint}-{TIE_RATIO}-"
