"""``autotune tables list``: the roots that are served from, and every file in them."""

from pathlib import Path
from typing import Any

from autotune.cli.tables.paths import refused_lines
from autotune.console.command import command
from autotune.console.options import json_option, tables_option
from autotune.console.output import make_console, print_json, print_sheet
from autotune.sheets import Sheet, number, text
from autotune.table.inventory import FileSummary, RootSummary, all_roots, take_inventory


@command("list")
@tables_option
@json_option
def list_tables(tables: Path | None, as_json: bool) -> None:
    """List every file of the tables that are served from, those that win first: yours, the site's, packages', shipped.

    Files that are damaged, foreign, vouched for by nothing or missing are named with the reason; their rows are not
    served. What is replayed comes after all that a GPU measured.
    """
    roots, missing = all_roots(tables)
    found = take_inventory(roots)
    if as_json:
        print_json({"roots": [_data(each) for each in found], "missing": [str(error) for error in missing]})
        return
    console = make_console()
    for each in found:
        print_sheet(console, _sheet(each))
        console.print(*refused_lines(each.refused), sep="\n", end="\n" if each.refused else "")
    console.print(*refused_lines(missing), sep="\n", end="\n" if missing else "")


def _sheet(found: RootSummary) -> Sheet:
    state = "" if found.is_there else ", not there yet"
    columns = (text("file"), text("operation"), text("implementation"), text("device"), text("holds"), number("rows"))
    cells = tuple(_cells(file) for file in found.files)
    notes = () if cells or not found.is_there else ("no tables",)
    title = f"{found.root.title}: {found.root.path}{state}"
    return Sheet(title, (*columns, number("outside"), text("measured"), text("triton"), text("sha256")), cells, notes)


def _cells(file: FileSummary) -> tuple[Any, ...]:
    days = [f"{moment:%Y-%m-%d}" for moment in (file.first, file.last) if moment is not None]
    return (
        _short(file.path),
        file.operation,
        file.implementation,
        ", ".join(file.devices),
        _holding(file),
        file.rows,
        "" if file.outside is None else file.outside,
        " to ".join(dict.fromkeys(days)),
        ", ".join(file.tritons),
        file.digest[:12],
    )


def _holding(file: FileSummary) -> str:
    if not file.replayed:
        return file.kind
    return f"{file.kind}, replayed" if file.replayed == file.rows else f"{file.kind}, {file.replayed:,} replayed"


def _short(path: Path) -> str:
    """Return a path whose name, if it is a digest, is cut."""
    stem = path.stem
    return str(path.with_name(f"{stem[:12]}...")) if len(stem) == 64 else str(path)


def _data(found: RootSummary) -> dict[str, Any]:
    return {
        "origin": found.root.origin,
        "name": found.root.name,
        "path": str(found.root.path),
        "files": [
            {
                "path": str(file.path),
                "kind": file.kind,
                "sha256": file.digest,
                "bytes": file.size,
                "operation": file.operation,
                "implementation": file.implementation,
                "devices": file.devices,
                "rows": file.rows,
                "replayed": file.replayed,
                "outside": file.outside,
                "first": None if file.first is None else file.first.isoformat(),
                "last": None if file.last is None else file.last.isoformat(),
                "triton": file.tritons,
            }
            for file in found.files
        ],
        "refused": [str(error) for error in found.refused],
    }
