"""``autotune grid status``: how far the studies of a place are."""

import time
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.live import Live

from autotune.cli.grid.progress_table import progress_data, progress_sheets, sheet_lines
from autotune.console.command import command, number, option
from autotune.console.options import PATH, json_option
from autotune.console.output import make_console, print_json, print_sheets
from autotune.errors import UsageError
from autotune.grid.grid_file import read_grid
from autotune.grid.place import GridPlace
from autotune.grid.progress import GridProgress, Ledger


@command("status")
@click.argument("place", metavar="PLACE")
@click.argument("grid", metavar="[GRID.toml]", type=PATH, required=False)
@option("--watch", is_flag=True, help="Show a table that follows the place, until all is done.")
@option("--every", metavar="SECONDS", type=number(0.1), default=5.0, help="Between two looks of --watch.")
@json_option
def status(place: str, grid: Path | None, watch: bool, every: float, as_json: bool) -> None:
    """Show how far the studies are whose results go to PLACE, a folder or a URI such as s3://bucket/llama.

    Counted are studies by state, trials by status, and the time left for each kind of device. Hosts of other power caps
    or toolchains stand apart, as their rows do in the tables. With GRID.toml, studies that nobody began count as
    waiting. A study is lost whose attempt began long ago, three budgets and ten minutes, and did not end.
    """
    if watch and as_json:
        raise UsageError("--watch and --json exclude each other; leave one out")
    ledger, where = Ledger(() if grid is None else read_grid(grid)), GridPlace(place)

    def look() -> GridProgress:
        ledger.read(where)
        return ledger.progress(datetime.now(UTC))

    if as_json:
        print_json({"place": str(where), **progress_data(look())})
        return
    console = make_console()
    found = look()
    if watch:
        with Live(
            sheet_lines(progress_sheets(found, str(where))), console=console, auto_refresh=False, transient=True
        ) as live:
            while not found.is_over:
                time.sleep(every)
                found = look()
                live.update(sheet_lines(progress_sheets(found, str(where))), refresh=True)
    print_sheets(console, progress_sheets(found, str(where)))
