"""Tables of others: read within limits whatever they are, and kept apart until a check confirms them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.errors import TableError
from autotune.table.exchange import from_json
from autotune.table.files import read_bytes
from autotune.table.future import require_past
from autotune.table.order import in_order
from autotune.table.outsiders import Table
from autotune.table.parquet import decode, encode
from autotune.table.parts import DIGEST, OnDamaged, Shelf, raise_damaged
from autotune.table.roots import UNCONFIRMED
from autotune.table.store import Store
from autotune.table.vouched import tables_of, vouched_bytes
from autotune.table.winners import as_imported, winners
from autotune.trial import Trial

PARQUET: Final = b"PAR1"  # how a file of Parquet begins


@dataclass(frozen=True, slots=True)
class Foreign:
    """The winners of tables of others, and what was left out: rows that are of no space here, and refused files."""

    winners: tuple[Trial, ...]
    outside: int
    refused: tuple[TableError, ...]


def read_foreign(sources: Iterable[Path]) -> Foreign:
    """Read the winners of files and folders of any origin: tables, and exports as JSON or T4.

    Files are bounded before they are parsed, and every value is checked. A table that is named by a digest must be what
    its name says; no other needs anything that vouches for it. One with a row dated later than now is refused.
    """
    refused: list[TableError] = []
    trials: list[Trial] = []
    outside = 0
    for path in _files(sources, refused.append):
        try:
            table = _read(path)
            require_past(table, str(path))
            trials += table.trials
            outside += len(table.outsiders)
        except TableError as error:
            refused.append(error)
    return Foreign(tuple(winners(in_order(trials))), outside, tuple(refused))


def _read(path: Path) -> Table:
    if path.suffix == ".json":
        return from_json(read_bytes(path), str(path))
    is_named = DIGEST.fullmatch(path.stem) is not None
    data = vouched_bytes(path) if is_named else read_bytes(path)
    if not data.startswith(PARQUET):
        raise TableError(f"{path}: is not a table of this format: not Parquet; expected Parquet or JSON of autotune")
    return decode(data, str(path))


def _files(sources: Iterable[Path], refuse: OnDamaged) -> Iterator[Path]:
    for source in sources:
        yield from tables_of(source, refuse)
        if source.is_dir():
            yield from sorted(source.rglob("*.json"))


def unconfirmed_store(store: Store) -> Store:
    """Return the store of rows that no check has confirmed yet, beside a store's own."""
    return Store(store.root / UNCONFIRMED)


def is_kept(store: Store, trial: Trial) -> bool:
    """Return True if a store has a row of others, as it was measured here or as it was imported."""
    kept = store.trials(trial.operation, trial.device, implementation=trial.implementation)
    return trial in kept or as_imported(trial) in kept


def keep_confirmed(store: Store, trial: Trial) -> None:
    """Add a row to a store, behind every race that was measured here, and take it from those that are not confirmed."""
    if not is_kept(store, trial):
        store.append([as_imported(trial)])
    forget_unconfirmed(store, trial)


def keep_unconfirmed(store: Store, trial: Trial) -> None:
    """Keep a row apart, a file for each, so that it can be taken away alone."""
    unconfirmed_store(store).append([trial])


def forget_unconfirmed(store: Store, trial: Trial) -> None:
    """Remove a row from those that are not confirmed; nothing happens where it is not among them."""
    shelf = Shelf(unconfirmed_store(store).root / trial.device.slug, trial.operation, trial.implementation)
    if (path := shelf.part_of(encode([trial]))).exists():
        shelf.remove(path)


def unconfirmed_trials(store: Store) -> list[Trial]:
    """Return the rows that are not confirmed, oldest first."""
    kept = unconfirmed_store(store)
    tables = (table for shelf in kept.shelves(raise_damaged) for table in shelf.read(raise_damaged).values())
    return in_order(trial for table in tables for trial in table.trials)
