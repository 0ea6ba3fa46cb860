"""The user's store: every trial ever acknowledged, in files that are written once and never changed."""

import itertools
import os
import shlex
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.errors import TableError
from autotune.table.files import list_folder, read_bytes, remove, sha256, size_bytes, sweep_temporaries, write_bytes
from autotune.table.parquet import decode, encode
from autotune.trial import Trial

SUFFIX: Final = ".parquet"
COMPACT_BYTES: Final = 8 * 2**20  # parts are merged up to this size, a quarter of what a reader takes
MAX_LISTINGS: Final = 100
KEPT: Final = "every trial reported before is kept: make room there, and the same command goes on where it stopped"

OnDamaged = Callable[[TableError], None]


def home() -> Path:
    """The user's store: ``$AUTOTUNE_HOME``, or ``autotune`` in the XDG data folder (``~/.local/share``).

    Raises:
        TableError: neither is set and the user has no home folder.
    """
    if chosen := os.environ.get("AUTOTUNE_HOME"):
        return Path(chosen).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(data):  # the XDG specification: a relative path is to be ignored
        return Path(data) / "autotune"
    try:
        return Path.home() / ".local" / "share" / "autotune"
    except RuntimeError as error:
        raise TableError("there is no home folder to keep tables in; set AUTOTUNE_HOME") from error


def raise_damaged(error: TableError) -> None:
    """Refuse the whole table because of one damaged part: for a search, which must not silently forget."""
    raise error


def warn_damaged(error: TableError) -> None:
    """Go on without a damaged part and warn of it once in the life of the process: for serving."""
    _warn_once(str(error))


@cache
def _warn_once(message: str) -> None:
    warnings.warn(f"{message}; its rows are not used", RuntimeWarning, stacklevel=3)


def in_order(trials: Iterable[Trial]) -> list[Trial]:
    """Trials without duplicates, oldest first; the order depends on nothing but the set."""
    return sorted(dict.fromkeys(trials), key=lambda trial: (trial.started_at, trial.study, trial.number, repr(trial)))


class Store:
    """Append-only trials under ``<root>/<device slug>/<operation>/<sha256>.parquet``.

    A part is one acknowledged batch, named by the digest of its bytes, so no two processes ever write different bytes
    to one name: any number may append, read and compact at once, without locks. A folder need not exist until the first
    append, and reading needs no permission to write. ``on_damaged`` is what ``trials`` does where it is not told.

    Example:
        >>> store = Store(home())
        >>> store.append(trials)  # on disk when this returns
        >>> store.trials("flash_attention", NVIDIA_H200)
    """

    def __init__(self, root: Path, *, on_damaged: OnDamaged = raise_damaged) -> None:
        self.root = root
        self._on_damaged = on_damaged

    def append(self, trials: Iterable[Trial]) -> Path:
        """Keep a batch of trials of one operation and device; on disk once this returns. Returns its part.

        Raises:
            TableError: the batch is empty or mixed, a trial holds an impossible value (rows count in the order of
                ``in_order``), or the part cannot be written; then no row of the batch counts as kept.
        """
        batch = in_order(trials)
        devices = {trial.device for trial in batch}
        operations = {trial.operation for trial in batch}
        if len(devices) != 1 or len(operations) != 1:
            found = sorted(operations | {device.name for device in devices})
            raise TableError(
                f"{self.root}: a batch is of one operation and one device, got {', '.join(found) or 'none'}"
            )
        return _write_part(self._folder(operations.pop(), devices.pop()), batch)

    def trials(
        self, operation: str, device: Device | None = None, *, on_damaged: OnDamaged | None = None
    ) -> list[Trial]:
        """Every distinct trial of an operation, oldest first; with ``device``, of that very device and power cap.

        ``on_damaged`` is called for each part that is damaged or foreign, and each folder that cannot be listed; where
        it returns, reading goes on without that part.

        Raises:
            TableError: by ``on_damaged``.
        """
        on_damaged = on_damaged or self._on_damaged
        if device is not None:
            folders = [self._folder(operation, device)]
        else:
            folders = [path / operation for path in _list(self.root, on_damaged) if not os.path.isfile(path)]
        parts = [part for folder in folders for part in _read_parts(folder, on_damaged)]
        return in_order(trial for part in parts for trial in part if device in (None, trial.device))

    def compact(self, operation: str, device: Device) -> None:
        """Merge the small parts of a device's folder into one and remove stale temporary files.

        The merged part is on disk before the first small one goes, so being killed at any point loses nothing.

        Raises:
            TableError: a part is damaged, or a file cannot be written or removed; nothing is lost.
        """
        folder = self._folder(operation, device)
        sweep_temporaries(folder)
        parts = {path: rows for path in _small_parts(folder) if (rows := _read_part(path)) is not None}
        if len(parts) < 2:
            return
        merged = _write_part(folder, in_order(itertools.chain.from_iterable(parts.values())))
        for path in parts:
            if path != merged:
                remove(path)

    def _folder(self, operation: str, device: Device) -> Path:
        return self.root / device.slug / operation


def _write_part(folder: Path, trials: list[Trial]) -> Path:
    data = encode(trials, str(folder))
    path = folder / f"{sha256(data)}{SUFFIX}"
    try:
        write_bytes(path, data)
    except TableError as error:
        raise TableError(f"{error}; {KEPT}") from error.__cause__
    return path


def _list(folder: Path, on_damaged: OnDamaged = raise_damaged) -> list[Path]:
    try:
        return list_folder(folder)
    except TableError as error:
        on_damaged(error)
        return []


def _list_parts(folder: Path, on_damaged: OnDamaged = raise_damaged) -> list[Path]:
    return [path for path in _list(folder, on_damaged) if path.suffix == SUFFIX]


def _small_parts(folder: Path) -> list[Path]:
    """The smallest parts that together stay below the limit of one merged part."""
    sizes = {path: size_bytes(path) for path in _list_parts(folder)}
    smallest = sorted(sizes, key=lambda path: (sizes[path], path))
    totals = itertools.accumulate(sizes[path] for path in smallest)
    return [path for path, total in zip(smallest, totals, strict=True) if total <= COMPACT_BYTES]


def _read_parts(folder: Path, on_damaged: OnDamaged) -> list[list[Trial]]:
    """The trials of every part, however many others write and compact meanwhile.

    A listing that runs during a compaction may miss both the small parts and the merged one, so parts are listed until
    none has vanished since the listing before.
    """
    parts: dict[Path, list[Trial]] = {}
    listed: set[Path] | None = None
    for _ in range(MAX_LISTINGS):
        previous, listed = listed, set(_list_parts(folder, on_damaged))
        for path in sorted(listed - parts.keys()):
            try:
                rows = _read_part(path)
            except TableError as error:
                on_damaged(error)
                rows = []
            if rows is not None:
                parts[path] = rows
        if previous is not None and previous <= listed <= parts.keys():
            return list(parts.values())
    on_damaged(TableError(f"{folder}: cannot be read: its parts keep vanishing"))
    return list(parts.values())


def _read_part(path: Path) -> list[Trial] | None:
    """The trials of a part, or None if it is gone: then it was compacted, and its rows stand in a newer part."""
    try:
        data = read_bytes(path)
    except TableError as error:
        if isinstance(error.__cause__, FileNotFoundError) and not path.is_symlink():
            return None
        raise
    try:
        return _decode_named(path, data)
    except TableError as error:
        name = shlex.quote(str(path))
        raise TableError(f"{error}; `mv {name} {name}.damaged` sets it aside, and no other row is lost") from error


def _decode_named(path: Path, data: bytes) -> list[Trial]:
    """The trials in the bytes of a part, which its name and place vouch for."""
    if sha256(data) != path.stem:
        raise TableError(f"{path}: damaged: its SHA-256 is not its name")
    trials = decode(data, str(path))
    for trial in trials:
        if (trial.device.slug, trial.operation) != (path.parent.parent.name, path.parent.name):
            raise TableError(f"{path}: holds {trial.operation} on {trial.device.name}, which belongs in another folder")
    return trials
