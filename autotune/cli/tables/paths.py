"""Folders of tables as arguments of the commands."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from autotune.cli.stored import require_place
from autotune.console.options import PATH
from autotune.errors import TableError, UsageError
from autotune.table import Store, home

URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def table_arguments(name: str, metavar: str, count: int) -> Decorator:
    """Add positional folders or files of tables to a command; -1 stands for one or more."""
    return click.argument(name, metavar=metavar, nargs=count, required=True, type=PATH)


def require_there(paths: tuple[Path, ...]) -> None:
    """Validate folders or files to read."""
    for path in paths:
        if not path.exists():
            if URL.match(str(path)):
                address = URL.sub(r"\1://", str(path))  # of which a path keeps one slash
                raise UsageError(f"{address!r} is not read: only local files and folders are; fetch it first")
            raise UsageError(f"{str(path)!r} does not exist; expected a folder of tables, or a file of one")


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
