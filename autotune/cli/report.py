"""``autotune report``: tables of trials as one HTML file."""

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from autotune.cli.output import make_console, say
from autotune.errors import AutotuneError, TableError, UnknownNameError, UsageError
from autotune.registry import get_operation, operation_names
from autotune.table import Store, home, shipped_sweeps, shipped_winners, warn_damaged
from autotune.table.comparisons import holds_comparisons
from autotune.table.files import read_bytes
from autotune.table.parquet import decode
from autotune.trial import Trial

if TYPE_CHECKING:
    from autotune.report.page.problem import Problem

SHIPPED: Final = "shipped"

TableName = Annotated[
    str | None,
    typer.Argument(
        metavar="TABLE",
        help="A Parquet file, a folder of tables, a shipped sweep by name, or 'shipped' for all that ships "
        "[default: your tables].",
        show_default=False,
    ),
]
OperationFilter = Annotated[str | None, typer.Option("--operation", help="What is computed [default: all].")]
DeviceFilter = Annotated[str | None, typer.Option("--device", help="A device by name [default: all].")]
Rooflines = Annotated[
    list[Path] | None,
    typer.Option(
        "--roofline",
        metavar="FILE",
        help="Show a measured roofline, too: what `autotune analyze roofline --ncu --json` printed; may be repeated.",
    ),
]


class Rows(NamedTuple):
    """Trials, the words for where they are, and those of them that are served: the rows of a table of winners."""

    place: str
    trials: list[Trial]
    served: Sequence[Trial] = ()


def report(
    table: TableName = None,
    output: Annotated[Path, typer.Option("--output", help="File to write.")] = Path("autotune-report.html"),
    operation: OperationFilter = None,
    device: DeviceFilter = None,
    roofline: Rooflines = None,
) -> None:
    """Write what a table tells as one HTML file that works offline: gains, heat maps, regret, importance, failures."""
    from autotune.analysis.measured import read_roofline
    from autotune.report.html import html_report  # loads Optuna, for the importance of parameters

    if not output.parent.is_dir():  # known before a page is made
        raise UsageError(f"output={str(output)!r} cannot be written: No such file or directory")
    rooflines = [read_roofline(path) for path in roofline or ()]
    names = operation_names() if operation is None else [get_operation(operation).name]
    place, trials, served = _read(table, names)
    rows = _of_device([trial for trial in trials if trial.operation in names], device)
    if not rows:
        what = f" of {operation}" if operation else ""
        raise AutotuneError(
            f"no trials{what} in {place}; `autotune search` makes some, `autotune report shipped` has some"
        )
    say(f"writing a page of {len(rows)} rows")
    page = html_report(
        rows,
        source=place,
        made_at=datetime.now(UTC),
        rooflines=rooflines,
        served=served,
        on_problem=_tell if sys.stderr.isatty() else None,
    )
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"output={str(output)!r} cannot be written: {error.strerror}") from error
    make_console().print(f"{output}: {len(rows)} rows of {place}, {len(page.encode()) // 1000} kB")


def _tell(problem: "Problem", number: int, of: int) -> None:
    say(f"problem {number} of {of}: {problem.operation.name}, {problem.name}")


def _read(table: str | None, names: Iterable[str]) -> Rows:
    """The rows of a table by name or path.

    Raises:
        UnknownNameError: it is neither.
        TableError: it is damaged, or holds comparisons and no trials.
    """
    sweeps = {sweep.name: sweep for name in names for sweep in shipped_sweeps(name, on_damaged=warn_damaged)}
    if table is None:
        return Rows(f"your tables in {home()}", _stored(home(), names))
    if table == SHIPPED:
        recorded = [trial for sweep in sweeps.values() for trial in sweep.trials()]
        won = [trial for name in names for trial in shipped_winners(name, on_damaged=warn_damaged)]
        return Rows("the shipped tables", [*won, *recorded], won)
    if table in sweeps:
        return Rows(f"the shipped sweep {table}", sweeps[table].trials())
    path = Path(table)
    if path.is_dir():
        return Rows(f"the tables in {table}", _stored(path, names))
    if path.exists():
        data = read_bytes(path)
        if holds_comparisons(data):
            raise TableError(
                f"{table}: a comparison of `autotune bench`; report takes tables of trials, and no command shows a "
                "comparison afterwards: `autotune bench --markdown` prints it as it measures"
            )
        return Rows(path.name, decode(data, table))
    raise UnknownNameError(
        f"table={table!r} is no file, no folder and no shipped sweep; expected a path, {SHIPPED!r} or one of "
        f"{', '.join(sweeps) or 'no sweeps'}"
    )


def _stored(root: Path, names: Iterable[str]) -> list[Trial]:
    return [trial for name in names for trial in Store(root, on_damaged=warn_damaged).trials(name)]


def _of_device(trials: list[Trial], device: str | None) -> list[Trial]:
    """The rows of a device by name.

    Raises:
        UnknownNameError: none is of such a device.
    """
    names = sorted({trial.device.name for trial in trials})
    if device is None or not trials or device in names:
        return [trial for trial in trials if device in (None, trial.device.name)]
    raise UnknownNameError(f"device={device!r} has no rows; devices with rows: {', '.join(names)}")
