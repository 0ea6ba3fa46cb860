"""Parts: files of trials that are written once, named by their digest, and merged into fewer; and their snapshots.

A snapshot keeps the winners among parts, so that serving need not read every trial ever made: a table of winners, and a
``SHA256SUMS`` that lists it with the parts that it covers. It counts only while all these are there, together as long
as its name says and none changed after it, and today's space is the one that it was made for; any other is passed over.
So a writer that is killed, or two at once, cost time and never a row. The digests of covered parts are checked by who
reads every trial.
"""

import itertools
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.errors import TableError
from autotune.table import first_release
from autotune.table.files import (
    DIGITS,
    SUMS_NAME,
    checksums_bytes,
    list_folder,
    read_bytes,
    read_checksums,
    remove,
    require_own_links,
    sha256,
    size_and_change,
    sweep_temporaries,
    write_together,
)
from autotune.table.order import in_order
from autotune.table.outsiders import Table
from autotune.table.parquet import decode, encode
from autotune.table.schema import TableSchema, schema_named
from autotune.table.winners import TIE_RATIO, winners
from autotune.trial import Trial

SUFFIX: Final = ".parquet"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DIGEST: Final = re.compile("[0-9a-f]{64}")
COMPACT_BYTES: Final = 8 * 2**20  # parts are merged up to this size, a quarter of what a reader takes
WHOLE_BYTES: Final = 2**18  # some 15,000 rows: merging such parts saves little, and takes memory for all their rows
MAX_LISTINGS: Final = 100
KEPT: Final = "all that was kept before is: once it can be written, the same command goes on where it stopped"

OnDamaged = Callable[[TableError], None]
_NOTHING: Final = Table([], [])


def write_below(root: Path, contents: Mapping[Path, bytes]) -> None:
    """Write files of a store together, as ``write_together`` does: all that is written into one goes through here.

    Raises:
        TableError: a link of another user leads to one, or it cannot be written; the message says that no row is lost.
    """
    for folder in {path.parent: None for path in contents}:
        require_own_links(folder, root)
    try:
        write_together(contents)
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
        return self.device / self.operation / self.implementation

    @property
    def root(self) -> Path:
        return self.device.parent

    def parts(self, on_damaged: OnDamaged = raise_damaged) -> list[Path]:
        """List the parts, those of the first release too."""
        then = first_release.operation_then(self.operation, self.implementation)
        folders = [self.folder] if then is None else [self.folder, self.device / then]
        return [path for folder in folders for path in list_or_report(folder, on_damaged) if path.suffix == SUFFIX]

    def small_parts(self) -> list[Path]:
        """List the smallest parts that together stay below the limit of one merged part."""
        sizes = {path: size for path in self.parts() if (size := size_and_change(path)[0]) < WHOLE_BYTES}
        smallest = sorted(sizes, key=lambda path: (sizes[path], path))
        totals = itertools.accumulate(sizes[path] for path in smallest)
        return [path for path, total in zip(smallest, totals, strict=True) if total <= COMPACT_BYTES]

    def part_of(self, data: bytes) -> Path:
        """Return the part that holds the bytes of a table, once they are written."""
        return self.folder / f"{sha256(data)}{SUFFIX}"

    def write(self, data: bytes) -> Path:
        """Keep the bytes of a table; on disk once this returns. Return the new part."""
        write_below(self.root, {(path := self.part_of(data)): data})
        return path

    def remove(self, path: Path) -> None:
        """Remove a file of the shelf, unless a link of another user leads to it; it may be gone already."""
        require_own_links(path.parent, self.root)
        remove(path)

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
        if (data := self.read_bytes(path)) is None:
            return None
        try:
            table = decode(data, str(path), races_only=races_only)
        except TableError as error:
            raise TableError(_advice(path, error)) from error
        for place in table.places:
            if place != (self.device.name, self.operation, self.implementation):
                raise TableError(_why_elsewhere(path, place))
        return table

    def read_bytes(self, path: Path) -> bytes | None:
        """Return the bytes of a part that are what its name says, or None if it is gone."""
        try:
            data = read_bytes(path)
        except TableError as error:
            if isinstance(error.__cause__, FileNotFoundError) and not path.is_symlink():
                return None
            raise
        if not DIGEST.fullmatch(path.stem):
            raise TableError(f"{path}: not named by its SHA-256, as each table that a search writes; keep it elsewhere")
        if sha256(data) != path.stem:
            raise TableError(_advice(path, TableError(f"{path}: damaged: its SHA-256 is not its name")))
        return data

    def winners(self, on_damaged: OnDamaged) -> list[Trial]:
        """Return the winners: those of the snapshot, unless parts that it does not cover have rows beside them."""
        covered, found = self._read_snapshot()
        tables = self.read(on_damaged, known=dict.fromkeys(covered, _NOTHING), races_only=True)
        more = [trial for table in tables.values() for trial in table.trials]
        return winners([*found, *more]) if more else found

    def write_snapshot(self, going: Collection[Path] = (), known: Mapping[Path, Table] | None = None) -> None:
        """Replace the snapshot by one that covers all sound parts but those that will be removed.

        Parts with outsiders are not covered: their rows may be of the space again one day. Parts that are ``known``,
        and have not gone since, are not read again.
        """
        covered, found = self._read_snapshot()
        damaged: list[TableError] = []  # left uncovered, for readers to find
        there = {path: table for path in self.parts(damaged.append) if (table := (known or {}).get(path)) is not None}
        tables = self.read(damaged.append, known=there | dict.fromkeys(covered, _NOTHING), races_only=True)
        sound = {
            path: table.trials for path, table in tables.items() if not table.outsiders and path.parent == self.folder
        }
        kept = sound.keys() - set(going)
        found = winners([*found, *(trial for trials in sound.values() for trial in trials)])
        if not found:
            self._drop_snapshot()
        if kept == covered or not found:
            return
        data = encode(found, str(self.folder))
        size = sum(size_and_change(path)[0] for path in kept)
        name = f"{self._snapshot_prefix()}{size}-{sha256(data)[:16]}{SNAPSHOT_SUFFIX}"
        listed = {path.name: frozenset({path.stem}) for path in kept}
        sums = checksums_bytes(self.folder, {**listed, name: frozenset({sha256(data)})})
        write_below(self.root, {self.folder / name: data, self.folder / SUMS_NAME: sums})
        for path in self._snapshots():
            if path.name != name:
                with suppress(TableError):  # an old one is never read
                    self.remove(path)

    def _drop_snapshot(self) -> None:
        """Remove the snapshot of winners that are gone, and its list, which would name parts that are."""
        for path in self._snapshots():
            self.remove(self.folder / SUMS_NAME)
            self.remove(path)

    def _snapshots(self) -> list[Path]:
        return [path for path in list_folder(self.folder) if path.suffix == SNAPSHOT_SUFFIX]

    def compact(self, known: Mapping[Path, Table] | None = None) -> None:
        """Merge the small parts into one, and take a snapshot of the winners; stale temporary files go.

        Of those that are ``known`` only the digest is checked. Parts with outsiders stay as they are. The merged part
        is on disk before the first small one goes, so being killed at any point loses nothing.

        Raises:
            TableError: a part is damaged, or a file cannot be written or removed; nothing is lost.
        """
        require_own_links(self.folder, self.root)
        sweep_temporaries(self.folder)
        tables = {
            path: table for path in self.small_parts() if (table := self._known_or_read(path, known or {})) is not None
        }
        sound = {path: table for path, table in tables.items() if not table.outsiders}
        going: set[Path] = set()
        if len(sound) > 1 or any(path.parent != self.folder for path in sound):
            rows = in_order(itertools.chain.from_iterable(table.trials for table in sound.values()))
            merged = self.write(encode(rows, str(self.folder)))
            going = sound.keys() - {merged}
            sound[merged] = Table(rows, [])
        self.write_snapshot(going, sound)
        for path in going:
            self.remove(path)

    def _known_or_read(self, path: Path, known: Mapping[Path, Table]) -> Table | None:
        """Return the table of a part, without building the rows of one that is known, or None if it is gone."""
        if (table := known.get(path)) is None:
            return self.read_part(path)
        return None if self.read_bytes(path) is None else table

    def _read_snapshot(self) -> tuple[frozenset[Path], list[Trial]]:
        """Return the parts that the snapshot covers, all of them there, and their winners; nothing if it is no use."""
        try:
            listed = {self.folder / name: digests for name, digests in read_checksums(self.folder).items()}
            if not listed:
                return frozenset(), []
            prefix = self._snapshot_prefix()
            (path,) = (path for path in listed if path.name.startswith(prefix) and path.suffix == SNAPSHOT_SUFFIX)
            (digest,) = listed.pop(path)
            said = path.name.removeprefix(prefix)
            is_current = listed.keys() <= set(list_folder(self.folder)) and _are_unchanged(listed, path, said)
            if is_current and sha256(data := read_bytes(path)) == digest:
                table = decode(data, str(path))
                if not table.outsiders:
                    return frozenset(listed), table.trials
        except (TableError, ValueError):
            pass
        return frozenset(), []

    def _snapshot_prefix(self) -> str:
        """Return how the name of a snapshot of today's space and rule begins."""
        schema = schema_named(self.operation, self.implementation)
        fingerprint = schema.fingerprint if isinstance(schema, TableSchema) else ""
        return f"winners-{fingerprint}-{TIE_RATIO}-"


def _are_unchanged(covered: Collection[Path], snapshot: Path, said: str) -> bool:
    """Return True if parts are as long as a snapshot's name, after its prefix, says, and none was changed after it."""
    seen = [size_and_change(path) for path in covered]
    newest = size_and_change(snapshot)[1]
    return said.startswith(f"{sum(size for size, _ in seen)}-") and all(changed <= newest for _, changed in seen)


def _why_elsewhere(path: Path, place: tuple[str, str, str]) -> str:
    """Say where a part belongs: in another folder, or in this one of a folder that was not named whole."""
    wrong = f"{path}: holds {'/'.join(place)}, which belongs in another folder"
    if (folder := path.resolve().parent).parts[-len(place) :] != place:
        return _advice(path, TableError(wrong))
    return f"{wrong}: it lies in one of {folder.parents[len(place) - 1]}; name that"


def _advice(path: Path, error: TableError) -> str:
    """Return in a line the fault of a part, and the command that sets it aside; the digest is cut, as in git."""
    folder, start = shlex.quote(str(path.parent)), path.stem[:DIGITS]
    reason = str(error).removeprefix(f"{path}: ")
    aside = f"`mv {folder}/{start}*{SUFFIX} {folder}/{start}{SUFFIX}.damaged` sets it aside"
    return f"{path.parent.name}/{start}...: {reason}; {aside}, and no other row is lost"


def list_or_report(folder: Path, on_damaged: OnDamaged) -> list[Path]:
    """List a folder; one that cannot be listed is reported and counts as empty."""
    try:
        return list_folder(folder)
    except TableError as error:
        on_damaged(error)
        return []
