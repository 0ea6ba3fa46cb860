"""The tables that ship with the package: winners and recorded sweeps, read-only and checked on every read."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.errors import TableError
from autotune.table.checksums import FILE_NAME, read_checked, read_checksums, write_checksums
from autotune.table.files import sha256, write_bytes
from autotune.table.parquet import decode, encode, operation_of
from autotune.table.store import OnDamaged, in_order, raise_damaged
from autotune.trial import Trial

RESULTS: Final = Path(__file__).parents[1] / "results"
SWEEPS: Final = "sweeps"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A recorded sweep: a space measured exhaustively on one device; nothing is decoded until ``trials``."""

    name: str
    operation: str
    path: Path
    results: Path

    def trials(self) -> list[Trial]:
        """Every trial of the sweep, oldest first.

        Raises:
            TableError: the file is damaged, or not what ``SHA256SUMS`` says.
        """
        name = self.path.relative_to(self.results).as_posix()
        return decode(read_checked(self.results, name, read_checksums(self.results)), str(self.path))


def shipped_winners(
    operation: str, *, results: Path = RESULTS, on_damaged: OnDamaged = raise_damaged
) -> list[Trial]:
    """The winner rows of an operation on all devices that tables are shipped for; empty where there are none.

    ``on_damaged`` is called for each table that is refused; where it returns, the others are read.

    Raises:
        TableError: by ``on_damaged``.
    """
    found: list[Trial] = []
    for name, data in _checked(results, f"*/{operation}.parquet", on_damaged):
        try:
            trials = decode(data, str(results / name))
            _require_place(name, trials, results / name)
        ...
    return in_order(found)
