"""``autotune doctor``: what works, what is missing, and how to repair it."""

from collections.abc import Container

from autotune.cli.health import Finding, examine
from autotune.console.command import command
from autotune.console.options import json_option
from autotune.console.output import make_console, print_json
from autotune.errors import TableError
from autotune.registry import operation_names
from autotune.table import (
    Store,
    home,
    shipped_compilations,
    shipped_grid,
    shipped_portfolios,
    shipped_sweeps,
    shipped_winners,
)
from autotune.table.inventory import all_roots
from autotune.table.listed import check_listed
from autotune.table.roots import extra_roots


@command("doctor")
@json_option
def doctor(as_json: bool) -> None:
    """Report device, versions, tables, what works here, and the command that repairs what does not.

    Fails if a table is damaged; something missing is not a failure.
    """
    findings = examine()
    damaged = _damaged_tables()
    found = {finding.text for finding in findings}
    findings += [Finding("table", False, text) for text in damaged if text not in found]
    if as_json:
        print_json(findings)
    console = make_console()
    for finding in () if as_json else findings:
        console.print(f"{'ok ' if finding.ok else '-- '} {finding.subject:15} {finding.text}")
        if finding.fix:
            console.print(f"{'':19} fix: {finding.fix}")
    if damaged:
        subjects = dict.fromkeys(f"`{finding.subject}`" for finding in findings if finding.text in damaged)
        count = "1 table" if len(damaged) == 1 else f"{len(damaged)} tables"
        raise TableError(f"{count} cannot be read: see {', '.join(subjects)}")


def _damaged_tables() -> list[str]:
    errors: list[TableError] = []
    try:
        store = Store(home(), on_damaged=errors.append)
    except TableError:
        store = None  # there is no home folder: the findings say so
    others = [Store(root.path, on_damaged=errors.append) for root in extra_roots(errors.append)]
    for name in operation_names():
        if store is not None:
            store.trials(name)
        for other in others:
            other.trials(name)
        shipped_winners(name, on_damaged=errors.append)
        shipped_sweeps(name, on_damaged=errors.append)
        shipped_grid(name, on_damaged=errors.append)
        shipped_portfolios(name, on_damaged=errors.append)
        shipped_compilations(name, on_damaged=errors.append)
    errors += _not_as_listed({_path_of(error) for error in errors})
    return list(dict.fromkeys(" ".join(str(error).split()) for error in errors))


def _not_as_listed(known: Container[str]) -> list[TableError]:
    """Return the errors of files of any root that its lists name, but for those known, by their paths."""
    roots, _ = all_roots()
    errors: list[TableError] = []
    for root in roots:
        if root.path.is_dir():
            check_listed(root.path, errors.append)
    return [error for error in errors if _path_of(error) not in known]


def _path_of(error: TableError) -> str:
    return str(error).partition(": ")[0]
