"""``autotune tables merge``: the union of tables from anywhere."""

import os
from dataclasses import asdict
from pathlib import Path

from autotune.cli.tables.paths import own_store, require_there, table_arguments
from autotune.console.command import command, option
from autotune.console.options import PATH, json_option
from autotune.console.output import make_console, print_json
from autotune.errors import TableError
from autotune.table import Merged, raise_damaged
from autotune.table import merge as merge_tables
from autotune.table.pruning import compact_store
from autotune.units import count_text


@command("merge")
@table_arguments("sources", "PATHS...", -1)
@option("--into", metavar="FOLDER", type=PATH, required=True, help="Folder of tables to add to; made as needed.")
@json_option
def merge(sources: tuple[Path, ...], into: Path, as_json: bool) -> None:
    """Add the trials of folders and files to a folder of tables, each once.

    The result is the union of the rows: no order or grouping of the merges makes a difference, and merging again adds
    nothing. Every file must be vouched for, by its name or a SHA256SUMS above it; this says that it is whole, not where
    it comes from: `autotune tables import` checks the tables of others. Refused files are named, change nothing and
    make the exit code 1.
    """
    require_there(sources)
    store = own_store(into, name="into")
    found = merge_tables(sources, store, jobs=os.cpu_count() or 1)
    if found.added and not found.refused:
        compact_store(store, raise_damaged)
    if as_json:
        print_json({**asdict(found), "into": str(into)})
    else:
        make_console().print(*(f"refused: {each}" for each in found.refused), _summary(found, into), sep="\n")
    if found.refused:
        raise TableError(f"{count_text(len(found.refused), 'file')} refused, the first is {found.refused[0]}")


def _summary(found: Merged, into: Path) -> str:
    rows, files = count_text(found.rows, "row"), count_text(found.files, "file")
    return f"merged {rows} of {files} into {into}: {found.added:,} new"
