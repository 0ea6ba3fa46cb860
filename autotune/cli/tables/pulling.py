"""``autotune tables pull``: a fleet's tables on this machine."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from autotune.cli.grid_options import require_no_secrets
from autotune.cli.tables.diff import difference_line, summary_line
from autotune.console.command import command, option
from autotune.console.options import PATH, json_option
from autotune.console.output import make_console, print_json
from autotune.table import raise_damaged
from autotune.table.difference import Difference, differences
from autotune.table.pull import Pulled, pull_tables
from autotune.table.vouched import TableFile, read_files
from autotune.trial import Trial
from autotune.units import count_text, few_text

VARIABLE = "AUTOTUNE_PULL"


@command("pull")
@click.argument("uri", metavar="URI", envvar=VARIABLE)
@option(
    "--tables",
    metavar="FOLDER",
    type=PATH,
    help="Folder to be served from, by AUTOTUNE_SITE.",
    default_text="$AUTOTUNE_SITE, or share/autotune in the environment",
)
@json_option
def pull(uri: str, tables: Path | None, as_json: bool) -> None:
    """Copy the tables at a path or URI (s3://bucket/tables) to this machine; new processes serve them, and
    autotune.reload() others.

    All tables there are whole and new, or none is: a damaged, foreign or oversized one is named, the exit code is 1,
    and the old ones stay. Nothing is printed where nothing has changed, and pulls at once wait for each other, so that
    cron may run it. Credentials belong into the environment (AWS_ACCESS_KEY_ID, ...), or the whole URI into
    AUTOTUNE_PULL, which stands for the argument: every user of a machine can read command lines.
    """
    if click.get_current_context().get_parameter_source("uri") is ParameterSource.COMMANDLINE:
        require_no_secrets(uri, "uri", VARIABLE)
    found = pull_tables(uri, tables)
    after = list(read_files([found.version], raise_damaged)) if found.is_changed or as_json else []
    changes = _changes(found, after) if found.is_changed else []
    replayed = [trial for file in after for trial in file.table.trials if trial.executor == "replay"]
    if as_json:
        print_json({**_data(found, changes), "replayed": len(replayed)})
    elif found.is_changed:
        lines = [_summary(found, changes), *map(difference_line, changes), *_replayed_lines(replayed)]
        make_console().print(*lines, sep="\n")


def _changes(found: Pulled, after: list[TableFile]) -> list[Difference]:
    before = [] if found.before is None else list(read_files([found.before], raise_damaged))
    return differences(before, after)


def _replayed_lines(rows: list[Trial]) -> list[str]:
    """Say of which shapes rows are that no GPU measured: not of those that their tasks asked for."""
    if not rows:
        return []
    shapes = few_text(sorted({f"{row.operation}: {row.shape}" for row in rows}), "; ")
    served = "they are of the recorded shapes, and served only where nothing measured is"
    return [f"{count_text(len(rows), 'row')} replayed, not measured: {served}: {shapes}"]


def _summary(found: Pulled, changes: list[Difference]) -> str:
    tables = f"{count_text(found.tables, 'table')}, {found.new:,} new, {found.gone:,} gone"
    return f"pulled {found.source} to {found.folder}: {tables}; winners: {summary_line(changes)}"


def _data(found: Pulled, changes: list[Difference]) -> dict[str, Any]:
    return {
        "source": found.source,
        "folder": str(found.folder),
        "version": found.version.name,
        "changed": found.is_changed,
        "tables": found.tables,
        "new": found.new,
        "gone": found.gone,
        "winners": list(map(difference_line, changes)),
    }
