"""The inventory of roots: what each file of tables holds, and which files are damaged or foreign."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from autotune.errors import TableError
from autotune.table.computed import ComputedFile, read_computed
from autotune.table.files import sha256
from autotune.table.listed import check_listed
from autotune.table.outsiders import Outsider
from autotune.table.roots import UNCONFIRMED, Root, extra_roots
from autotune.table.shipped import RESULTS
from autotune.table.store import home
from autotune.table.vouched import TableFile, read_files
from autotune.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSummary:
    """A table, or a file of portfolios or compilations, in short.

    Attributes:
        path: relative to its root.
        kind: "trials", "portfolios" or "compilations".
        digest: the SHA-256 of its bytes, ``size`` of them.
        rows: those of today's space; ``outside`` counts the others, None where they are not read.
        replayed: rows among those of today's space that a recorded sweep answered, and no GPU measured.
        first, last: when the first and the last of its rows of the space were measured; None where there is none.
        tritons: the versions of Triton that they were measured with.
    """

    path: Path
    kind: str
    digest: str
    size: int
    operation: str
    implementation: str
    devices: tuple[str, ...]
    rows: int
    replayed: int
    outside: int | None
    first: datetime | None
    last: datetime | None
    tritons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RootSummary:
    """A root, its files, and an error for each there that is damaged, foreign, vouched for by nothing or missing.

    ``is_there`` is False for a root that does not exist yet.
    """

    root: Root
    files: tuple[FileSummary, ...]
    refused: tuple[TableError, ...]
    is_there: bool = True


def all_roots(tables: Path | None = None, *, results: Path = RESULTS) -> tuple[list[Root], list[TableError]]:
    """Return the roots that are served from, the first to win first, and an error for each that is named and absent.

    An account without a home folder has no store of its own, which is an error among these, too.

    ``tables`` stands for the user's own store. Imported rows that are not confirmed come last, and are not served.
    """
    missing: list[TableError] = []
    own: list[Path] = []
    try:
        own.append(tables or home())
    except TableError as error:  # an account without a home folder
        missing.append(error)
    roots = [*(Root("user", path) for path in own), *extra_roots(missing.append), Root("shipped", results)]
    kept_apart = (path / UNCONFIRMED for path in own)
    return [*roots, *(Root("user", path, "not confirmed") for path in kept_apart if path.is_dir())], missing


def take_inventory(roots: Iterable[Root]) -> list[RootSummary]:
    """Read every table of the roots, portfolios and compilations too, and say what each holds."""
    return [_take(root) if root.path.is_dir() else RootSummary(root, (), (), is_there=False) for root in roots]


def _take(root: Root) -> RootSummary:
    refused: list[TableError] = []
    files = [_summary(file, root.path) for file in read_files([root.path], refused.append)]
    files += [_computed_summary(file, root.path) for file in read_computed(root.path, refused.append)]
    check_listed(root.path, refused.append)
    return RootSummary(root, tuple(files), tuple({str(error): error for error in refused}.values()))


def _summary(file: TableFile, root: Path) -> FileSummary:
    trials, outsiders = file.table
    rows: list[Trial | Outsider] = [*trials, *outsiders]
    moments = [trial.started_at for trial in trials]
    operation, implementation = (rows[0].operation, rows[0].implementation) if rows else ("", "")
    return FileSummary(
        path=file.path.relative_to(root),
        kind="trials",
        digest=sha256(file.data),
        size=len(file.data),
        operation=operation,
        implementation=implementation,
        devices=tuple(sorted({row.device.name for row in rows})),
        rows=len(trials),
        replayed=sum(trial.executor == "replay" for trial in trials),
        outside=len(outsiders),
        first=min(moments, default=None),
        last=max(moments, default=None),
        tritons=tuple(sorted({trial.toolchain.triton for trial in trials} - {""})),
    )


def _computed_summary(file: ComputedFile, root: Path) -> FileSummary:
    return FileSummary(
        path=file.path.relative_to(root),
        kind=file.kind,
        digest=sha256(file.data),
        size=len(file.data),
        operation=file.path.parent.parent.name,
        implementation=file.path.stem,
        devices=tuple(sorted({row.device.name for row in file.rows})),
        rows=len(file.rows),
        replayed=0,
        outside=None,
        first=None,
        last=None,
        tritons=tuple(sorted({row.triton_version for row in file.rows} - {""})),
    )
