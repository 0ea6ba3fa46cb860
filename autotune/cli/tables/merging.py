"""``autotune tables merge``: the union of tables from anywhere."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from autotune.cli.grid_options import PLACE, require_no_secrets
from autotune.cli.tables.paths import own_store, require_there
from autotune.console.command import command, option
from autotune.console.options import PATH, json_option
from autotune.console.output import make_console, print_json
from autotune.errors import TableError, UsageError
from autotune.table import Merged, Store, raise_damaged
from autotune.table import merge as merge_tables
from autotune.table.fetched import fetch_tables
from autotune.table.pruning import compact_store
from autotune.table.reach import require_reachable
from autotune.table.remote import open_folder
from autotune.units import count_text

CORES: Final = os.cpu_count() or 1


@command("merge")
@click.argument("sources", metavar="[PATHS|URIS]...", nargs=-1)
@option("--into", metavar="FOLDER", type=PATH, required=True, help="Folder of tables to add to; made as needed.")
@json_option
def merge(sources: tuple[str, ...], into: Path, as_json: bool) -> None:
    """Add the trials of folders, files and places, such as s3://bucket/llama, to a folder of tables, each once.

    The result is the union of the rows: no order or grouping of the merges makes a difference, and merging again adds
    nothing. Every file must be vouched for, by its name or a SHA256SUMS above it; this says that it is whole, not where
    it comes from: `autotune tables import` checks the tables of others. Refused files are named, change nothing and
    make the exit code 1.

    The tables of a URI are copied here first, into the usual temporary folder. One that holds credentials belongs into
    AUTOTUNE_PLACE, which stands for the sources where none is given.
    """
    store = own_store(into, name="into")
    found = _merge(sources, store)
    if found.added and not found.refused:
        compact_store(store, raise_damaged)
    if as_json:
        print_json({**asdict(found), "into": str(into)})
    else:
        make_console().print(*(f"refused: {each}" for each in found.refused), *_summary(found, into), sep="\n")
    if found.refused:
        raise TableError(f"{count_text(len(found.refused), 'file')} refused, the first is {found.refused[0]}")


def _merge(sources: Sequence[str], store: Store) -> Merged:
    """Merge sources, those of URIs from copies of their tables; refused ones are named as they are there."""
    typed = [require_no_secrets(source) for source in sources]
    if not (named := typed or list(filter(None, [os.environ.get(PLACE)]))):
        raise UsageError(f"PATHS are missing; name folders, files or URIs of tables, or set {PLACE}")
    paths = {source: Path(source).expanduser() for source in named if "://" not in source}
    require_there("sources", *paths.values())
    places: dict[str, str] = {}
    unread: list[str] = []
    with ExitStack() as stack:
        for source in named:
            if source not in paths:
                require_reachable(source)
                folder, copy = open_folder(source), Path(stack.enter_context(TemporaryDirectory(prefix="autotune-")))
                unread += map(str, fetch_tables(folder, copy))
                paths[source], places[str(copy)] = copy, str(folder)
        found = merge_tables([paths[source] for source in named], store, jobs=CORES)
    return replace(found, refused=(*unread, *(_named_there(each, places) for each in found.refused)))


def _named_there(refused: str, places: Mapping[str, str]) -> str:
    for copy, place in places.items():
        refused = refused.replace(copy, place)
    return refused


def _summary(found: Merged, into: Path) -> list[str]:
    rows, files = count_text(found.rows, "row"), count_text(found.files, "file")
    lines = [f"merged {rows} of {files} into {into}: {found.added:,} new"]
    if found.repaired:
        lines.append(f"replaced {count_text(found.repaired, 'damaged file')} of {into}, which a source has whole")
    if found.recordings:
        left_out = count_text(found.recordings, "recorded file")
        lines.append(f"left out {left_out} of sweeps and grids, of which nothing is served; name one to merge it")
    if not found.files and not found.refused and not found.recordings:
        lines.append("no tables were found there")
    return lines
