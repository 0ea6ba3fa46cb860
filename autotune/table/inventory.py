"""The inventory of roots: what each file of tables holds, and which files are damaged or foreign."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from autotune.errors import TableError
from autotune.table.files import sha256
from autotune.table.outsiders import Outsider
from autotune.table.roots import UNCONFIRMED, Root, extra_roots
from autotune.table.shipped import RESULTS
from autotune.table.store import home
from autotune.table.vouched import TableFile, read_files
from autotune.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSummary:
    """A table, in short.

    Attributes:
        path: relative to its root.
        digest: the SHA-256 of its bytes, ``size`` of them.
        rows: those of today's space; ``outside`` counts the others.
        first, last: when the first and the last of its rows of the space were measured; None where there is none.
        tritons: the versions of Triton that they were measured with.
    """

    path: Path
    digest: str
    size: int
    operation: str
    implementation: str
    devices: tuple[str, ...]
    rows: int
    outside: int
    first: datetime | None
    last: datetime | None
    tritons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RootSummary:
    """A root, its tables by path, and an error for each file there that is damaged, foreign or vouched for by nothing.

    ``is_there`` is False for a root that does not exist yet.
    """

    root: Root
    files: tuple[FileSummary, ...]
    refused: tuple[TableError, ...]
    is_there: bool = True


def all_roots(tables: Path | None = None, *, results: Path = RESULTS) -> tuple[list[Root], list[TableError]]:
    """Return the roots that are served from, the first to win first, and an error for each that is named and absent.

    ``tables`` stands for the user's own store. Imported rows that are not confirmed come last, and are not served.
    """
    missing: list[TableError] = []
    own = tables or home()
    roots = [Root("user", own), *extra_roots(missing.append), Root("shipped", results)]
    kept_apart = own / UNCONFIRMED
    return [*roots, *([Root("user", kept_apart, "not confirmed")] if kept_apart.is_dir() else [])], missing


def take_inventory(roots: Iterable[Root]) -> list[RootSummary]:
    """Read every table of the roots, and say what each holds."""
    found = []
    for root in roots:
        refused: list[TableError] = []
        files = [_summary(file, root.path) for file in read_files([root.path], refused.append)] if _is(root) else []
        found.append(RootSummary(root, tuple(files), tuple(refused), _is(root)))
    return found


def _is(root: Root) -> bool:
    return root.path.is_dir()


def _summary(file: TableFile, root: Path) -> FileSummary:
    trials, outsiders = file.table
    rows: list[Trial | Outsider] = [*trials, *outsiders]
    moments = [trial.started_at for trial in trials]
    operation, implementation = (rows[0].operation, rows[0].implementation) if rows else ("", "")
    return FileSummary(
        path=file.path.relative_to(root),
        digest=sha256(file.data),
        size=len(file.data),
        operation=operation,
        implementation=implementation,
        devices=tuple(sorted({row.device.name for row in rows})),
        rows=len(trials),
        outside=len(outsiders),
        first=min(moments, default=None),
        last=max(moments, default=None),
        tritons=tuple(sorted({trial.toolchain.triton for trial in trials} - {""})),
    )
