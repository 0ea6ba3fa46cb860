"""Portfolios: which of an architecture's few good configs each recorded shape is assigned, with the evidence.

A portfolio ships as ``<architecture>/<operation>/portfolios/<implementation>.parquet`` below ``results``, a row for
each recorded shape and device, and is checked on every read as winners are. ``benchmarks.portfolios`` writes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from autotune.device import Device
from autotune.errors import UsageError
from autotune.implementation import Implementation
from autotune.likeness import Likeness, likeness
from autotune.shape import Shape
from autotune.space import Config
from autotune.table.parts import OnDamaged, raise_damaged
from autotune.table.row_format import RowFormat
from autotune.table.schema import AMOUNT, BOOLEAN, DEVIATION, DURATION, NAME, POSITIVE_COUNT, TEXT, TableColumn
from autotune.table.shipped import RESULTS
from autotune.trial import Candidate

PORTFOLIOS: Final = "portfolios"
# A winner's row times the winner and the default. What else was near it is not known there: only of shapes with more
# timed configs than this is it known what a wrong choice costs. A grid times about twelve, which hold the best: in each
# of twelve sweeps of dense attention, left out in turn, the best of four to six of them was that of all 160 to 490
# (NVIDIA H200, 2026-11-21 and 2026-11-22; ``benchmarks.model_grid.knowledge``).
BROAD: Final = 7


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One recorded shape on one device, and the member of its architecture's portfolio that it is assigned.

    Regrets are parts of the best time there, 0.02 for 2 %; None where they are not known, as of what failed.

    Attributes:
        config: the member.
        is_default: the member is no config but the rule that is the space's default, whose value here ``config`` is.
        timed: how many configs have a time here.
        regret: of the member.
        default_regret: of the space's default.
        left_out_regret: of what the portfolio would choose here if it did not know this shape. Where that is the
            space's default and was not timed here, what it lost on another device of the architecture, and in addition
            what two devices differ by in the mean.
        behind: of the best of this implementation, over the best of all that met in its race; 0 where that is its own,
            None where no other implementation was in it. Where its own best was not raced its screening tells.
        is_chosen: of all implementations this one would be served, if no portfolio knew this shape; None where
            ``behind`` is, and where no other shape tells which.
        transfer_distance: how far the nearest other shape of the family is (``Shape.distance``) whose configs were
            timed as fully.
        transfer_regret: of serving that shape's winner here; infinite where it computes wrong results.
        source_hash: the source that was timed; ``triton_version`` is that of its toolchain.
    """

    operation: str
    implementation: str
    device: Device
    shape: Shape
    config: Config
    is_default: bool
    timed: int
    regret: float | None = None
    default_regret: float | None = None
    left_out_regret: float | None = None
    behind: float | None = None
    is_chosen: bool | None = None
    transfer_distance: float | None = None
    transfer_regret: float | None = None
    source_hash: str
    triton_version: str = ""

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.implementation, self.config)

    @cached_property
    def likeness(self) -> Likeness:
        """The shape on its device as configs feel it; kept, since each new shape is compared with all."""
        return likeness(self.shape, self.device)

    @property
    def is_broad(self) -> bool:
        """Return True if enough configs have a time to say what a wrong choice costs."""
        return self.timed > BROAD

    @property
    def own_left_out_time(self) -> float | None:
        """The time of what the portfolio would choose if it did not know this shape, over the implementation's best."""
        return None if self.left_out_regret is None else 1.0 + self.left_out_regret

    @property
    def left_out_time(self) -> float | None:
        """The same over the best of all implementations; None where no other one met this one in a race."""
        own = self.own_left_out_time
        return None if own is None or self.behind is None else own * (1.0 + self.behind)


_COLUMNS: Final = (
    TableColumn("is_default", BOOLEAN),
    TableColumn("timed", POSITIVE_COUNT),
    *(TableColumn(name, AMOUNT, nullable=True) for name in ("regret", "default_regret", "left_out_regret", "behind")),
    TableColumn("is_chosen", BOOLEAN, nullable=True),
    TableColumn("transfer_distance", DURATION, nullable=True),
    TableColumn("transfer_regret", DEVIATION, nullable=True),
    TableColumn("source_hash", NAME),
    TableColumn("triton_version", TEXT),
)


def _as_today(implementation: Implementation[Any], row: Assignment) -> Assignment:
    """Take a default that the space has changed since for the config that it was; what it lost is not known anew."""
    if not row.is_default:
        return row
    try:
        is_same = implementation.space.default(row.shape, row.device) == row.config
    except UsageError:
        is_same = False
    return row if is_same else replace(row, is_default=False, default_regret=None, left_out_regret=None)


FORMAT: Final = RowFormat(Assignment, "a portfolio", PORTFOLIOS, "autotune.portfolio_version", "2", _COLUMNS, _as_today)


def shipped_portfolios(
    operation: str, *, implementation: str = "*", results: Path = RESULTS, on_damaged: OnDamaged = raise_damaged
) -> list[Assignment]:
    """Return the portfolios of an operation's implementations, or of one, of all architectures that one ships for.

    Rows that are not of today's space are left out. ``on_damaged`` is called with the error of each portfolio that is
    refused; where it returns, the others are still read.

    Raises:
        TableError: by ``on_damaged``.
    """
    return FORMAT.read(operation, results, on_damaged, implementation=implementation)


def write_portfolio(rows: Sequence[Assignment], *, results: Path = RESULTS) -> Path:
    """Write or replace the portfolio of one implementation on one architecture, and list it in ``SHA256SUMS``.

    Raises:
        TableError: there are no rows, or rows of several; a value is impossible, or a file cannot be written.
    """
    return FORMAT.write(rows, results)


def encode(rows: Sequence[Assignment], where: str = "new portfolio") -> bytes:
    """Return the Parquet bytes of a portfolio (``RowFormat.encode``)."""
    return FORMAT.encode(rows, where)


def decode(data: bytes, where: str) -> list[Assignment]:
    """Read the bytes of a portfolio (``RowFormat.decode``)."""
    return FORMAT.decode(data, where)
