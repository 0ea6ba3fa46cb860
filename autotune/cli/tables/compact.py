"""``autotune tables compact``: fewer, larger files of the user's tables."""

from pathlib import Path

from autotune.cli.tables.paths import own_store
from autotune.console.command import command
from autotune.console.options import json_option, tables_option
from autotune.console.output import make_console, print_json
from autotune.table import raise_damaged
from autotune.table.pruning import compact_store
from autotune.units import count_text


@command("compact")
@tables_option
@json_option
def compact(tables: Path | None, as_json: bool) -> None:
    """Merge the small files of your tables, and keep their winners apart for a fast first look-up; no row is lost."""
    store = own_store(tables, must_exist=True)
    found = compact_store(store, raise_damaged)
    if as_json:
        rows = [
            {
                "operation": shelf.operation,
                "implementation": shelf.implementation,
                "device": shelf.device.name,
                "files_before": before,
                "files": after,
            }
            for shelf, before, after in found
        ]
        print_json(rows)
        return
    lines = [
        f"{shelf.operation}/{shelf.implementation} on {shelf.device.name}: {count_text(before, 'file')} -> {after}"
        for shelf, before, after in found
    ]
    make_console().print(*(lines or ["no tables"]), sep="\n")
