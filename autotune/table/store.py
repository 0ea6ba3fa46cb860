"""The user's store: every trial ever acknowledged, in files that are written once and never changed.

Beside it lies the list of shapes that were served the default: what ``autotune search --from-misses`` tunes.
"""

import errno
import itertools
import json
import os
import shlex
import stat
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from autotune.device import Device
from autotune.errors import TableError, one_line
from autotune.operation import Operation
from autotune.registry import get_operation, implementation_names
from autotune.shape import Shape
from autotune.table import first_release
from autotune.table.files import is_open_to_all, read_bytes
from autotune.table.order import in_order
from autotune.table.outsiders import Outsider, Table
from autotune.table.parquet import Encoded, encode_rows
from autotune.table.parts import WHOLE_BYTES, OnDamaged, Shelf, list_or_report, raise_damaged, write_below
from autotune.table.schema import TableSchema, schema_named
from autotune.table.winners import winners
from autotune.trial import Trial

MISSES: Final = "misses.jsonl"
CLOSE: Final = "chmod o-w"


def home() -> Path:
    """Return the folder of the user's store: ``$AUTOTUNE_HOME``, or ``autotune`` in the XDG data folder.

    Raises:
        TableError: neither is set and the user has no home folder, or the variable is a URI or begins with the ``~`` of
            no user.
    """
    if chosen := os.environ.get("AUTOTUNE_HOME"):
        if "://" in chosen:
            raise TableError(f"AUTOTUNE_HOME={chosen!r} is a URI; expected a folder of this machine")
        try:
            return Path(chosen).expanduser().absolute()
        except (RuntimeError, OSError) as error:  # OSError: the current folder was removed
            raise TableError(f"AUTOTUNE_HOME={chosen!r} names no folder ({error}); set it to a whole path") from error
    data = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(data):  # the XDG specification: a relative path is to be ignored
        return Path(data) / "autotune"
    try:
        return Path.home() / ".local" / "share" / "autotune"
    except RuntimeError as error:
        raise TableError("there is no home folder to keep tables in; set AUTOTUNE_HOME") from error


def warn_damaged(error: TableError) -> None:
    """Go on without a damaged part and warn of it once in the life of the process: for serving."""
    _warn_once(f"{error}; its rows are not used", stacklevel=3)


def warn_open(root: Path) -> None:
    """Warn, once in the life of the process, of a store that every user of the machine can write to."""
    if (reason := why_open(root)) is not None:
        _warn_once(f"{root}: {reason}; `{CLOSE} {shlex.quote(str(root))}` ends that", stacklevel=3)


def why_open(root: Path) -> str | None:
    """Return the reason to close a store to other users; None where none of them can write to it."""
    return "every user of this machine can add rows there, which are then served" if is_open_to_all(root) else None


@cache
def _warn_once(message: str, *, stacklevel: int) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=stacklevel)


class Store:
    """Append-only trials under ``<root>/<device slug>/<operation>/<implementation>/<sha256>.parquet``.

    A part is one acknowledged batch, named by the digest of its bytes, so no two processes ever write different bytes
    to one name: any number may append, read and compact at once, without locks. A folder need not exist until the first
    append, and reading needs no permission to write. ``on_damaged`` is called with the ``TableError`` of each part that
    is damaged or foreign, and of a folder that cannot be listed; where it returns, reading goes on without that part.

    Example:
        >>> store = Store(home())
        >>> store.append(trials)  # on disk when this returns
        >>> store.trials("flash_attention", NVIDIA_H200)
    """

    def __init__(self, root: Path, *, on_damaged: OnDamaged = raise_damaged) -> None:
        self.root = root
        self._on_damaged = on_damaged
        self._own: dict[Path, tuple[TableSchema, Table]] = {}  # parts that it wrote since it compacted their folder

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": {}}  # schemas have functions that cannot be pickled

    def append(self, trials: Iterable[Trial]) -> list[Path]:
        """Keep a batch of trials of one operation and device, such as a race; on disk once this returns.

        All parts are written in full before the first gets its name, so a batch that cannot be written leaves nothing.
        A reader that comes between these renames, or after a kill there, sees of each implementation all rows of the
        batch or none: one whose part is missing still has the winner of its race before.

        Returns:
            The part of each implementation.

        Raises:
            TableError: the batch is empty or mixed, a trial holds an impossible value (rows count in the order of
                ``in_order``), or a part cannot be written.
        """
        batch = in_order(trials)
        devices = {trial.device for trial in batch}
        operations = {trial.operation for trial in batch}
        if len(devices) != 1 or len(operations) != 1:
            found = sorted(operations | {device.name for device in devices})
            raise TableError(
                f"{self.root}: a batch is of one operation and one device, got {', '.join(found) or 'none'}"
            )
        (device,), (operation,) = devices, operations
        parts: dict[Path, Encoded] = {}
        for name in sorted({trial.implementation for trial in batch}):
            shelf = Shelf(self.root / device.slug, operation, name)
            part = encode_rows([trial for trial in batch if trial.implementation == name], str(shelf.folder))
            parts[shelf.part_of(part.data)] = part
        write_below(self.root, {path: part.data for path, part in parts.items()})
        small = {path: part for path, part in parts.items() if len(part.data) < WHOLE_BYTES}
        self._own |= {path: (part.schema, part.table) for path, part in small.items()}
        return list(parts)

    def append_encoded(self, slug: str, owner: tuple[str, str], data: bytes) -> Path:
        """Keep the bytes of a table of checked rows, on devices of one slug; on disk once this returns.

        Raises:
            TableError: the part cannot be written.
        """
        return Shelf(self.root / slug, *owner).write(data)

    def trials(
        self,
        operation: str,
        device: Device | None = None,
        *,
        implementation: str | None = None,
        on_damaged: OnDamaged | None = None,
    ) -> list[Trial]:
        """Return every distinct trial of an operation's registered implementations, or of one, oldest first.

        With ``device`` only those of that very device and power cap.

        Raises:
            TableError: by ``on_damaged``.
        """
        report = on_damaged or self._on_damaged
        names = None if implementation is None else [implementation]
        shelves = self._shelves(operation, "" if device is None else device.slug, names, report)
        tables = itertools.chain.from_iterable(shelf.read(report).values() for shelf in shelves)
        return in_order(trial for table in tables for trial in table.trials if device in (None, trial.device))

    def winners(
        self,
        operation: str,
        *,
        implementations: Sequence[str] | None = None,
        slug: str = "",
        on_damaged: OnDamaged | None = None,
    ) -> list[Trial]:
        """Return ``winners(trials(operation))``, from snapshots as far as they reach, or of some implementations.

        With ``slug`` only those on devices that have it (``Device.slug``).

        Raises:
            TableError: by ``on_damaged``.
        """
        report = on_damaged or self._on_damaged
        shelves = self._shelves(operation, slug, implementations, report)
        found = [rows for shelf in shelves if (rows := shelf.winners(report))]
        return found[0] if len(found) == 1 else winners(itertools.chain.from_iterable(found))

    def outsiders(self, operation: str | None = None, *, on_damaged: OnDamaged | None = None) -> list[Outsider]:
        """Return the rows that are not of today's spaces, and those of what is not registered here.

        Of one operation, or of all that the store has rows of.

        Raises:
            TableError: by ``on_damaged``.
        """
        report = on_damaged or self._on_damaged
        shelves = (each for each in self.shelves(report) if operation in (None, each.operation))
        tables = itertools.chain.from_iterable(shelf.read(report).values() for shelf in shelves)
        return [outsider for table in tables for outsider in table.outsiders]

    def compact(self, operation: str, device: Device) -> None:
        """Merge the small parts of each implementation on a device into one, and take a snapshot of the winners.

        The rows of what this store has written itself, a file for each trial of a search, are not built again.

        Raises:
            TableError: a part is damaged, or a file cannot be written or removed; nothing is lost.
        """
        for shelf in self._shelves(operation, device.slug, None, raise_damaged):
            own = {path: part for path, part in self._own.copy().items() if path.parent == shelf.folder}
            schema = schema_named(shelf.operation, shelf.implementation)
            shelf.compact({path: table for path, (of, table) in own.items() if of is schema})
            for path in own:
                self._own.pop(path, None)

    def shelves(self, on_damaged: OnDamaged | None = None) -> Iterator[Shelf]:
        """Yield the shelves of all that the store may have rows of, registered here or not; some have no part.

        Raises:
            TableError: by ``on_damaged``, for a folder that cannot be listed.
        """
        report = on_damaged or self._on_damaged
        for device in _folders(self.root, report):
            names = [path.name for path in _folders(device, report)]
            for owner in dict.fromkeys(owner for name in names for owner in _owners(device, name, report)):
                yield Shelf(device, *owner)

    def _shelves(
        self, operation: str, slug: str, implementations: Sequence[str] | None, on_damaged: OnDamaged
    ) -> list[Shelf]:
        names = implementation_names(operation) if implementations is None else implementations
        folders = [self.root / slug] if slug else _folders(self.root, on_damaged)
        return [Shelf(folder, operation, name) for folder in folders for name in names]


def _folders(folder: Path, on_damaged: OnDamaged) -> Iterator[Path]:
    return (path for path in list_or_report(folder, on_damaged) if not os.path.isfile(path))


def _owners(device: Path, operation: str, on_damaged: OnDamaged) -> list[tuple[str, str]]:
    """Return the implementations that a folder of an operation may have rows of, in either layout."""
    names = [*implementation_names(operation), *(path.name for path in _folders(device / operation, on_damaged))]
    return [first_release.names_of(operation), *((operation, name) for name in names)]


def record_miss(operation: Operation[Any], shape: Shape) -> None:
    """Append a shape to the list, once a process; a list that cannot be written is warned of once, no failure."""
    try:
        _record_once(home() / MISSES, operation.name, shape)
        return
    except OSError as error:
        where = f"{home() / MISSES} ({error.strerror or error})"
    except TableError as error:  # an account without a home folder
        where = f"the home folder ({error})"
    message = f"missed shapes cannot be recorded in {where}; `autotune search --from-misses` will not find them"
    _warn_once(message, stacklevel=5)


@lru_cache(maxsize=4096)  # what raises is not kept: a disk that has room again gets the shape
def _record_once(path: Path, operation: str, shape: Shape) -> None:
    line = json.dumps({"operation": operation, **shape.as_dict()}) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whoever can write into the folder could let a link lead to any file of this user, or a pipe wait for its reader.
    with open(path, "ab+", buffering=0, opener=_open_no_link) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        data = (f"\n{line}" if torn else line).encode()
        if os.write(file.fileno(), data) < len(data):  # one write: lines of several processes do not mix
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _open_no_link(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link, which is not followed") from None
        raise


def read_misses(root: Path | None = None) -> list[tuple[Operation[Any], Shape]]:
    """Return the distinct shapes of the list, in the order they were first missed.

    A line that is not a shape of a registered operation is passed over with a warning that names it; a list that cannot
    be read raises TableError.
    """
    path = (root or home()) / MISSES
    if not path.exists() and not path.is_symlink():
        return []
    found: dict[tuple[str, Shape], Operation[Any]] = {}
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        try:
            given = json.loads(line)
            operation = get_operation(first_release.names_of(given.pop("operation"))[0])
            removed = operation.shape_class.REMOVED.items()
            kept = {field: value for field, value in given.items() if (field, value) not in removed}
            shape = operation.shape_class(**{**operation.shape_class.ABSENT, **kept})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            message = f"{path}: line {number} is not a missed shape ({one_line(error)}) and is passed over; remove it"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        else:
            found.setdefault((operation.name, shape), operation)
    return [(operation, shape) for (_, shape), operation in found.items()]
