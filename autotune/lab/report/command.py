"""``autotune report``: tables of trials as one HTML file."""

import difflib
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from autotune.console.command import command, option
from autotune.console.kernel_option import operation_options
from autotune.console.options import NOT_WRITTEN, PATH, device_option, output_option
from autotune.console.output import make_console, say
from autotune.console.shapes import form_options
from autotune.dispatch.devices import without_rows
from autotune.errors import AutotuneError, TableError, UnknownNameError, UsageError
from autotune.registry import get_operation, operation_names
from autotune.table import (
    Outsider,
    Store,
    home,
    is_shipped,
    shipped_grid,
    shipped_outsiders,
    shipped_sweeps,
    shipped_winners,
    warn_damaged,
)
from autotune.table.comparisons import holds_comparisons
from autotune.table.files import read_bytes
from autotune.table.parquet import decode
from autotune.trial import Trial
from autotune.units import count_text, few_text

if TYPE_CHECKING:
    from autotune.lab.report.screening import Screening

SHIPPED: Final = "shipped"


class ReportRows(NamedTuple):
    """Trials and outsiders, a description of their origin, and what is served of them: rows of a table of winners.

    ``grids`` are rows that only tell how winners transfer between devices.
    """

    source: str
    trials: list[Trial]
    outsiders: list[Outsider]
    served: Sequence[Trial] = ()
    grids: Sequence[Trial] = ()


@command("report")
@click.argument("table", required=False)
@output_option("autotune-report.html")
@operation_options(default_text="all")
@device_option("all")
@option(
    "--roofline",
    "rooflines",
    metavar="FILE",
    type=PATH,
    multiple=True,
    help="Show a measured roofline, too: the output of `autotune analyze roofline --ncu --json`; may be repeated.",
)
def report(
    table: str | None, output: Path, operation: str | None, device: str | None, rooflines: Sequence[Path]
) -> None:
    """Write a table as one HTML file that works offline: gains, heat maps, regret, importance, failures.

    TABLE is a Parquet file, a folder of tables, a shipped sweep by name, or 'shipped' for all that ships; by default
    your tables.
    """
    from autotune.lab.report.document import html_report  # loads Optuna, for the importance of parameters
    from autotune.lab.roofline.saved import read_roofline

    if not output.parent.is_dir():  # known before a page is made
        raise UsageError(f"output={str(output)!r} cannot be written: No such file or directory")
    measured = [read_roofline(path) for path in rooflines]
    names = operation_names() if operation is None else [get_operation(operation).name]
    source, trials, outsiders, served, grids = _read(table, names)
    trials = [trial for trial in trials if trial.operation in names]
    devices = sorted({trial.device.name for trial in trials})
    if trials and device is not None and device not in devices:
        raise without_rows(device, devices)
    outsiders = [row for row in outsiders if operation in (None, row.operation)]
    if not trials and outsiders:
        why = f"{count_text(len(outsiders), 'row')} kept and never served, such as of {outsiders[0].operation}"
        raise AutotuneError(f"no trials of today's spaces in {source}; {why}: {outsiders[0].reason}")
    if not trials:
        raise AutotuneError(_no_trials_text(operation, source, is_shipped=table == SHIPPED))
    rows = [trial for trial in trials if device in (None, trial.device.name)]
    say(f"writing a page of {len(rows)} rows")
    page = html_report(
        rows,
        source=source,
        made_at=datetime.now(UTC),
        rooflines=measured,
        served=served,
        grids=grids,
        outsiders=[row for row in outsiders if device in (None, row.device.name)],
        on_screening=_say_screening if sys.stderr.isatty() else None,
    )
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"output={str(output)!r} cannot be written: {error.strerror}") from error
    make_console().print(f"{output}: {len(rows)} rows of {source}, {len(page.encode()) // 1000} kB")


def _no_trials_text(operation: str | None, source: str, *, is_shipped: bool) -> str:
    """Explain where trials are; the shipped tables are no advice to whom they have none, nor for a user's kernel."""
    if operation is None:
        what, makes = "", "autotune search"
    else:
        what, makes = f" of {operation}", f"autotune search {form_options(operation)}"
    ships = any(shipped_sweeps(operation, on_damaged=warn_damaged)) if operation else True
    has = "" if is_shipped or not ships else ", `autotune report shipped` has some"
    return f"no trials{what} in {source}; `{makes}` makes some{has}"


def _say_screening(screening: "Screening", number: int, of: int) -> None:
    say(f"problem {number} of {of}: {screening.first.operation}, {screening.name}")


def _read(table: str | None, names: Iterable[str]) -> ReportRows:
    """Read the rows of a table by name or path; one of comparisons alone is a TableError."""
    if table is None:
        return _stored(f"your tables in {home()}", home(), names)
    sweeps = [sweep for name in names for sweep in shipped_sweeps(name, on_damaged=warn_damaged)]
    if table == SHIPPED or table in (sweep.name for sweep in sweeps):
        recorded = [trial for sweep in sweeps if table in (SHIPPED, sweep.name) for trial in sweep.trials()]
        outsiders = [row for name in names for row in shipped_outsiders(name, on_damaged=warn_damaged)]
        if table != SHIPPED:
            outsiders = [row for row in outsiders if Path(row.where).stem == table]
            return ReportRows(f"the shipped sweep {table}", recorded, outsiders)
        won = [trial for name in names for trial in shipped_winners(name, on_damaged=warn_damaged)]
        grids = [trial for name in names for trial in shipped_grid(name, on_damaged=warn_damaged)]
        return ReportRows("the shipped tables", [*won, *recorded], outsiders, won, grids)
    path = Path(table)
    if path.is_dir() and is_shipped(path):
        raise UsageError(f"table={table!r} is {NOT_WRITTEN}; {SHIPPED!r} names the shipped ones")
    if path.is_dir():
        return _stored(f"the tables in {table}", path, names)
    if path.exists():
        data = read_bytes(path)
        if holds_comparisons(data):
            raise TableError(
                f"{table}: a comparison of `autotune bench`; report takes tables of trials, and no command shows a "
                "comparison afterwards: `autotune bench --markdown` prints it as it measures"
            )
        return ReportRows(path.name, *decode(data, table))
    near = difflib.get_close_matches(table, [sweep.name for sweep in sweeps], n=len(sweeps) or 1, cutoff=0.0)
    raise UnknownNameError(
        f"table={table!r} is no file, no folder and no shipped sweep; expected a path, {SHIPPED!r} or one of "
        f"{few_text(near) or 'no sweeps'}"
    )


def _stored(source: str, root: Path, names: Iterable[str]) -> ReportRows:
    store = Store(root, on_damaged=warn_damaged)
    trials = [trial for name in names for trial in store.trials(name)]
    return ReportRows(source, trials, store.outsiders())
