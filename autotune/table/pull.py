"""Pulled tables: a read-only copy of a fleet's tables for servers, all of it old or all of it new at any moment.

::

    <folder>                        a link to the version that is served
    <folder>.versions/<version>/    a store; the version is named by the digest of its tables' digests

A version is linked only once every table in it is what its digest says and can be read. The version before is kept for
whoever is still reading it; older ones go.
"""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.errors import TableError, UsageError, one_line
from autotune.table.fetched import TABLES, at_once, file_names
from autotune.table.files import SUMS_NAME, parse_checksums, read_bytes, sha256, write_bytes
from autotune.table.future import require_past
from autotune.table.parquet import decode
from autotune.table.parts import DIGEST, SUFFIX, raise_damaged
from autotune.table.remote import Folder, open_folder
from autotune.table.roots import site_folder
from autotune.table.shipped import GRIDS, SWEEPS
from autotune.table.store import Store
from autotune.table.vouched import COMPUTED
from autotune.units import few_text

VERSIONS: Final = ".versions"
LOCK: Final = ".lock"
VERSION_DIGITS: Final = 16
UNSERVED: Final = frozenset({*COMPUTED, GRIDS, SWEEPS, "bench"})  # folders of what ships and is no table of winners
_PART: Final = re.compile("[A-Za-z0-9_][A-Za-z0-9._-]*")
MAX_PULLS: Final = 20  # of tables that are compacted while they are copied, as tasks of a grid end


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """The result of a pull.

    Attributes:
        source: the place that was pulled from, without credentials.
        folder: the link that servers read, ``AUTOTUNE_SITE`` of theirs.
        version: the folder that it leads to now.
        before: the one that it led to until then; equal where nothing has changed, None at the first pull.
        tables: how many tables there are; ``new`` were not in the version before, and ``gone`` only there.
    """

    source: str
    folder: Path
    version: Path
    before: Path | None
    tables: int
    new: int
    gone: int

    @property
    def is_changed(self) -> bool:
        return self.version != self.before


def pull_tables(uri: str | Path, folder: str | Path | None = None) -> Pulled:
    """Copy the tables of a fleet to this machine; ``autotune.reload()`` serves them, as the site's tables.

    They stand below ``tables`` at the URI, as a grid writes them, or at the URI itself: a store, or a folder with a
    ``SHA256SUMS`` as in ``results``. Each must be what its digest says, within a reader's bounds, and readable; if one
    is not, nothing changes. Nothing is written at the URI. Pulls at once wait for each other.

    Args:
        uri: a path, or a URI that ``pyarrow.fs`` opens, such as ``s3://bucket/tables``; without credentials in it,
            those of the environment count.
        folder: where to; ``$AUTOTUNE_SITE`` by default, or ``share/autotune`` in the environment's prefix.

    Raises:
        UsageError: the folder exists and was not made by a pull.
        TableError: the URI cannot be read or has no tables; tables are refused, which the message names; or the copy
            cannot be written.

    Example:
        >>> if autotune.pull_tables("s3://bucket/tables").is_changed:
        ...     autotune.reload()
    """
    source = open_folder(uri)
    if "://" in str(folder):
        raise UsageError(f"folder={str(folder)!r} is a URI; expected a folder of this machine")
    link = Path(folder or site_folder()).expanduser().absolute()
    if link.is_file():
        raise UsageError(f"folder={str(folder)!r} is a file; expected a folder, which is made where there is none")
    with _errors_named(link), _alone(link):
        before = _linked(link)
        held = _paths(before)
        kept = dict(held)  # by their digests, what is here already, of versions that tables went from as well
        for attempt in range(MAX_PULLS):
            found = _find_tables(source)
            version = _versions(link) / sha256("\n".join(sorted(found)).encode())[:VERSION_DIGITS]
            refused = _copy(source, found, kept, version)
            kept |= _paths(version)
            is_last = attempt + 1 == MAX_PULLS
            if not refused and (is_last or set(found.values()) <= set(file_names(source))):
                break
            if refused and (is_last or not _are_gone(source, refused)):
                raise _refusal(source, refused, len(found))
        if version != before:
            for shelf in Store(version).shelves(raise_damaged):
                shelf.write_snapshot()
            _link(link, version)
            _remove_others(link, {version, before})
    return Pulled(
        source=str(source),
        folder=link,
        version=version,
        before=before,
        tables=len(found),
        new=len(found.keys() - held.keys()),
        gone=len(held.keys() - found.keys()),
    )


def _find_tables(source: Folder) -> dict[str, str]:
    """Return the names of the tables at a place, by their digests."""
    names = file_names(source)
    listed = _listed(source, names)
    found: dict[str, str] = {}
    for name in (name for name in names if name.endswith(SUFFIX)):
        stem = name.rpartition("/")[2].removesuffix(SUFFIX)
        if DIGEST.fullmatch(stem):
            found[stem] = name
        elif not UNSERVED.intersection(name.split("/")):
            digests = listed.get(name, frozenset())
            if len(digests) != 1:
                reason = "it is being replaced" if digests else f"neither its name nor a {SUMS_NAME} vouches for it"
                raise TableError(f"{source}/{name}: {reason}; nothing is pulled, and the old tables are kept")
            found[min(digests)] = name
    if not found:
        raise TableError(f"{source}: no tables there; expected a grid's place, or a folder of tables")
    return found


def _listed(source: Folder, names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the digests in the ``SHA256SUMS`` of a place, by the names of the files there."""
    found: dict[str, frozenset[str]] = {}
    for name in {SUMS_NAME, f"{TABLES}/{SUMS_NAME}"}.intersection(names):
        above = name.removesuffix(SUMS_NAME)
        listed = parse_checksums(source.read(name), f"{source}/{name}")
        found |= {f"{above}{path}": digests for path, digests in listed.items()}
    return found


def _copy(source: Folder, found: Mapping[str, str], old: Mapping[str, Path], version: Path) -> dict[str, TableError]:
    """Complete a version; return an error for each table that is refused, by its name at the source.

    Args:
        old: tables of other versions, by their digests.
    """
    here = _paths(version)

    def copy(item: tuple[str, str]) -> TableError | None:
        digest, name = item
        if _sound_bytes(here.get(digest), digest) is not None:
            return None
        where = f"{source}/{name}"
        try:
            if (data := _sound_bytes(old.get(digest), digest)) is None:
                data = source.read(name)
            if (found_digest := sha256(data)) != digest:
                raise TableError(f"{where}: damaged: its SHA-256 is {found_digest}, not {digest}")
            path = version / _place(data, where) / f"{digest}{SUFFIX}"
        except TableError as error:
            return error
        write_bytes(path, data)
        return None

    items = sorted(found.items())
    ends = zip(items, at_once(copy, items), strict=True)
    return {name: error for (_, name), error in ends if error is not None}


def _sound_bytes(path: Path | None, digest: str) -> bytes | None:
    """Return the bytes of a table that was pulled; None where it is not there, or no longer what its name says."""
    try:
        return data if path is not None and sha256(data := read_bytes(path)) == digest else None
    except TableError:
        return None


def _place(data: bytes, where: str) -> Path:
    """Return the folder of a table below a store; the table is bounded and checked as every reader does."""
    table = decode(data, where)
    require_past(table, where)
    places = table.places
    if len(places) != 1 or not all(_PART.fullmatch(part) for part in min(places)):
        found = ", ".join(sorted(map("/".join, places))) or "no rows"
        raise TableError(f"{where}: holds {found}; expected rows of one implementation and device")
    return Path(*min(places))


def _are_gone(source: Folder, refused: Mapping[str, TableError]) -> bool:
    """Return True if every refused table has vanished at the source: then it was compacted while it was pulled."""
    return not refused.keys() & set(file_names(source))


def _refusal(source: Folder, refused: Mapping[str, TableError], of: int) -> TableError:
    reasons = few_text([str(error) for error in refused.values()])
    return TableError(f"{source}: {len(refused)} of {of} tables refused, and the old ones are kept: {reasons}")


def _paths(version: Path | None) -> dict[str, Path]:
    """Return the tables of a version by their digests."""
    found = () if version is None else version.rglob(f"*{SUFFIX}")
    return {path.stem: path for path in found if DIGEST.fullmatch(path.stem)}


def _versions(link: Path) -> Path:
    return link.with_name(f"{link.name}{VERSIONS}")


def _linked(link: Path) -> Path | None:
    """Return the version that a link leads to; None for a folder that is not there yet, or is empty."""
    if link.is_symlink():
        target = link.parent / os.readlink(link)
        if target.parent == _versions(link):
            return target
    elif not link.exists() or (link.is_dir() and not any(link.iterdir())):
        return None
    raise UsageError(
        f"tables={str(link)!r} is there and was not pulled; expected a new folder, or one of an earlier pull"
    )


def _link(link: Path, version: Path) -> None:
    temporary = link.with_name(f".{link.name}.{secrets.token_hex(4)}")
    os.symlink(Path(version.parent.name, version.name), temporary)
    try:
        if link.is_dir() and not link.is_symlink():
            link.rmdir()  # empty
        os.replace(temporary, link)
    except OSError:
        temporary.unlink()
        raise


def _remove_others(link: Path, kept: set[Path | None]) -> None:
    for path in _versions(link).iterdir():
        if path.is_dir() and path not in kept:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _alone(link: Path) -> Iterator[None]:
    """Wait until no other process pulls to the same place; a lock ends with its process.

    The folder of versions is made, and removed again where nothing was pulled to it.
    """
    folder = _versions(link)
    is_made = not folder.exists()
    descriptor = _locked(folder / LOCK)
    try:
        yield
    finally:
        if is_made:
            _remove_empty(folder)
        os.close(descriptor)


def _locked(path: Path) -> int:
    """Return the descriptor of a file that this process alone has locked, and that is still there by then."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # of a folder that another pull removes at this moment
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


def _remove_empty(folder: Path) -> None:
    """Remove a folder of versions that holds none, with its lock: who waits for that one makes another."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
            folder.rmdir()


@contextmanager
def _errors_named(link: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TableError(f"{link}: cannot be pulled to: {one_line(error)}") from error
