"""Rows that are dated later than now: a wrong clock wrote them, and of races the newest decides."""

from datetime import UTC, datetime, timedelta
from typing import Final

from autotune.errors import TableError
from autotune.table.outsiders import Table
from autotune.table.rows import moment_of

AHEAD: Final = timedelta(minutes=10)  # that clocks of two machines may differ by


def require_past(table: Table, where: str) -> None:
    """Refuse a table of others with a row that is dated later than now: until that day no race here would outrank it.

    Raises:
        TableError: there is one; the message begins with ``where``.
    """
    moments = [trial.started_at for trial in table.trials]
    moments += [moment_of(outsider.columns["started_at"]) for outsider in table.outsiders]
    if moments:
        require_past_moment(max(moments), where)


def require_past_moment(latest: datetime, where: str) -> None:
    """Refuse rows of others by the moment of the latest, as ``require_past`` does.

    Raises:
        TableError: it is later than now.
    """
    now = datetime.now(UTC)
    if latest > now + AHEAD:
        raise TableError(
            f"{where}: a row is dated {latest:%Y-%m-%d %H:%M} UTC, later than now, {now:%Y-%m-%d %H:%M} UTC: "
            "no newer race would outrank it; set the clock here or there, and measure again"
        )
