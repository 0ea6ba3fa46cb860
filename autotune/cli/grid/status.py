"""``autotune grid status``: how far the tasks of a place are."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console
from rich.live import Live

from autotune.cli.grid.progress_table import progress_data, progress_sheets, sheet_lines
from autotune.cli.grid_options import PLACE, require_no_secrets
from autotune.console.command import command, number, option
from autotune.console.options import PATH, json_option
from autotune.console.output import make_console, print_json, print_sheets
from autotune.errors import TableError, UsageError
from autotune.grid.grid_file import read_grid
from autotune.grid.place import GridPlace
from autotune.grid.progress import GridProgress, Ledger
from autotune.table.reach import require_reachable
from autotune.table.remote import LocalFolder

Look = Callable[[], GridProgress]


@command("status")
@click.argument("place", metavar="PLACE", envvar=PLACE)
@click.argument("grid", metavar="[GRID.toml]", type=PATH, required=False)
@option("--watch", is_flag=True, help="Show a table that follows the place, until nothing there is running or waiting.")
@option("--every", metavar="SECONDS", type=number(0.1), default=5.0, help="Between two looks of --watch.")
@json_option
@click.pass_context
def status(context: click.Context, place: str, grid: Path | None, watch: bool, every: float, as_json: bool) -> None:
    """Show how far the tasks are whose results go to PLACE, a folder or a URI such as s3://bucket/llama.

    Counted are tasks by state, the trials that ended attempts have reported, by status, and the time left for each kind
    of device. Hosts of other power caps or toolchains stand apart, as their rows do in the tables. With GRID.toml,
    tasks that nobody began count as waiting; without it, only what was begun is counted. A task is lost whose attempt
    began long ago, three budgets and ten minutes, and did not end; --watch waits for none of these.

    A URI that holds credentials belongs into AUTOTUNE_PLACE, which stands for PLACE where that is left out.
    """
    if watch and as_json:
        raise UsageError("--watch and --json exclude each other; leave one out")
    is_typed = context.get_parameter_source("place") is ParameterSource.COMMANDLINE
    if is_typed and grid is None and place.endswith(".toml") and (kept := os.environ.get(PLACE)):
        place, grid, is_typed = kept, Path(place), False  # GRID.toml alone
    require_reachable(place := require_no_secrets(place) if is_typed else place)
    where = GridPlace(place)
    if isinstance(where.folder, LocalFolder) and not (root := where.folder.root).is_dir():
        why = "is a file" if root.exists() else "is not there"
        if root.exists() or grid is None:
            raise UsageError(f"place={place!r} {why}; expected a folder that `autotune search --grid` writes to")
        make_console(as_json).print(f"{root} is not there yet: no task was begun")
    ledger = Ledger(() if grid is None else read_grid(grid))

    def look() -> GridProgress:
        ledger.read(where)
        return ledger.progress(datetime.now(UTC))

    if as_json:
        print_json({"place": str(where), **progress_data(look())})
        return
    console = make_console()
    found = _watch(console, look, str(where), every) if watch else look()
    print_sheets(console, progress_sheets(found, str(where)))


def _watch(console: Console, look: Look, title: str, every: float) -> GridProgress:
    """Show a table until nothing is running or waiting; a look that fails is told of, and the next may not."""
    found = look()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(sheet_lines(progress_sheets(found, title)), refresh=True)
            if found.is_over:
                return found
            time.sleep(every)
            try:
                found = look()
            except TableError as error:
                console.print(f"{datetime.now():%H:%M:%S} {error}", markup=False)
