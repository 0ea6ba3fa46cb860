"""Folders of tables as arguments of the commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from autotune.cli.stored import require_place
from autotune.console.options import PATH
from autotune.errors import TableError, UsageError
from autotune.redaction import redacted
from autotune.table import Store, home

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def table_arguments(name: str, metavar: str, count: int) -> Decorator:
    """Add positional folders or files of tables to a command; -1 stands for one or more."""
    return click.argument(name, metavar=metavar, nargs=count, required=True, type=PATH)


def require_there(name: str, *paths: Path) -> None:
    """Validate folders or files to read, of the argument so named."""
    for path in paths:
        if not path.exists():
            given = f"{name}={redacted(str(path))!r}"
            raise UsageError(f"{given} does not exist; expected a folder of tables, or a file of one")


def own_store(tables: Path | None, *, must_exist: bool = False, name: str = "") -> Store:
    """Return the store of a folder, by default the user's own; UsageError for shipped tables, which nothing changes."""
    require_place(tables, name)
    root = home() if tables is None else tables
    if must_exist and not root.is_dir():
        raise UsageError(f"tables={str(root)!r} is not a folder; expected one that `autotune search` wrote")
    return Store(root)


def refused_lines(refused: tuple[TableError, ...] | list[TableError]) -> list[str]:
    """Return a line for each file that was refused."""
    return [f"refused: {' '.join(str(error).split())}" for error in refused]
