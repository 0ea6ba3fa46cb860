"""A host's claim to a task: the parts that it takes from the grid's place, and those that it adds while it owns it.

Beside the tables an empty file names each part by its problem, so that a retry finds the few that it resumes from among
those of the whole fleet::

    <place>/problems/<problem>/<device slug>/<implementation>/<sha256>
"""

import hashlib
import json
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from autotune.device import Device
from autotune.errors import HostError, LastingTableError, MissingFileError, SupersededError, TableError
from autotune.executor.select import ExecutorInfo
from autotune.grid.attempt import Attempt, AttemptEnd
from autotune.grid.grid_task import KEY_DIGITS, GridTask
from autotune.grid.place import TABLES, GridPlace
from autotune.table import warn_damaged
from autotune.table.fetched import at_once
from autotune.table.files import sha256, write_bytes
from autotune.table.parts import MAX_LISTINGS, SUFFIX
from autotune.trial import Toolchain

PROBLEMS: Final = "problems"
PATIENCE_SECONDS: Final = 600.0  # that a place may be out of reach
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0

T = TypeVar("T")


class TaskClaim:
    """One attempt at a task, which owns it until a later attempt begins.

    Every access to the place is tried again, ever less often, for ``patience`` seconds; not where it is refused.
    """

    def __init__(self, task: GridTask, place: GridPlace, here: ExecutorInfo, *, patience: float) -> None:
        self.task = task
        self._place = place
        self._patience = patience
        self._index = f"{PROBLEMS}/{problem_of(task)}/{here.device.slug}"
        before = self._reach(lambda: place.owner(task.key))
        self.attempt = _attempt(task, here, 1 if before is None else before[0] + 1)
        self._reach(lambda: place.begin(self.attempt))

    def fetch(self, root: Path) -> int:
        """Copy the parts that the place has of this problem and device to a store; return their number.

        Another task of the problem may end meanwhile, whose parts one then holds, and a listing may miss both: so parts
        are listed until none has gone since the listing before.
        """
        asked: set[str] = set()
        missing: set[str] = set()
        found = 0
        before: set[str] | None = None
        for _ in range(MAX_LISTINGS):
            names = set(self._reach(lambda: self._place.folder.list(self._index)))
            for name in sorted(names - asked):
                if (is_found := self._copy(name, root)) is None:
                    missing.add(name)
                found += bool(is_found)
            asked |= names
            if before is not None and before <= names:
                break
            before = names
        missing &= names  # the others went as they should
        for name in sorted(missing):  # as where the tables there were compacted
            warn_damaged(TableError(f"{self._place}/{TABLES}/{self._part(name)}: is gone, though it was indexed"))
        return found

    def _copy(self, name: str, root: Path) -> bool | None:
        """Copy the part that a name of the index means; None where it is not there, False where it is not wanted."""
        implementation, digest = name.split("/")[-2:]
        if self.task.implementations and implementation not in self.task.implementations:
            return False
        part = self._part(name)
        if (data := self._read(f"{TABLES}/{part}")) is None:
            return None
        if sha256(data) != digest:  # what it held is measured again
            warn_damaged(TableError(f"{self._place}/{TABLES}/{part}: damaged: its SHA-256 is not its name"))
            return False
        write_bytes(root / part, data)
        return True

    def _part(self, name: str) -> str:
        """Return the part, as a store names it, of a name of the index."""
        implementation, digest = name.split("/")[-2:]
        return f"{self._index.rpartition('/')[2]}/{self.task.operation}/{implementation}/{digest}{SUFFIX}"

    def _read(self, name: str) -> bytes | None:
        """Return a file's bytes; None where it is not there."""

        def read() -> bytes | None:
            try:
                return self._place.folder.read(name)
            except TableError as error:
                if isinstance(error, MissingFileError) or isinstance(error.__cause__, FileNotFoundError):
                    return None
                raise

        return self._reach(read)

    def share(self, part: str, data: bytes) -> None:
        """Write a part, named as in a store, to the place; it is there once this returns.

        Raises:
            SupersededError: a later attempt owns the task; nothing is written.
            HostError: the place cannot be reached.
        """
        self.require()
        self._reach(lambda: self._place.folder.write(f"{TABLES}/{part}", data))
        self._reach(lambda: self._place.folder.write(self._indexed(part), b""))

    def withdraw(self, parts: Iterable[str]) -> None:
        """Remove parts that this attempt has shared from the place, since another holds their rows.

        Raises:
            SupersededError: a later attempt owns the task; nothing is removed.
            HostError: the place cannot be reached, or keeps its files.
        """
        self.require()
        gone = list(parts)
        remove = self._place.folder.remove
        for names in ([self._indexed(part) for part in gone], [f"{TABLES}/{part}" for part in gone]):
            for _ in at_once(lambda name: self._reach(partial(remove, name)), names):  # what the index names is there
                pass

    def _indexed(self, part: str) -> str:
        implementation, name = part.split("/")[-2:]
        return f"{self._index}/{implementation}/{name.removesuffix(SUFFIX)}"

    def require(self) -> None:
        """Raise SupersededError unless this attempt owns the task."""
        owner = self._reach(lambda: self._place.owner(self.task.key))
        if owner != self.attempt.order:
            number = "none" if owner is None else owner[0]
            raise SupersededError(f"{self.task}: attempt {number} owns it now, not attempt {self.attempt.number}")

    def end(self, ending: AttemptEnd) -> None:
        """Write how the attempt ended."""
        self._reach(lambda: self._place.end(ending))

    def _reach(self, action: Callable[[], T]) -> T:
        deadline, pause = time.monotonic() + self._patience, FIRST_PAUSE
        while True:
            try:
                return action()
            except (OSError, TableError) as error:
                if _is_lasting(error) or time.monotonic() + pause > deadline:
                    # Somebody else's message may hold an address with its credentials.
                    why = str(error) if isinstance(error, TableError) else type(error).__name__
                    raise HostError(f"{self._place} is out of reach: {why}") from None
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)


def _is_lasting(error: OSError | TableError) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__
    refusals = (FileNotFoundError, PermissionError, NotADirectoryError)
    return isinstance(error, LastingTableError) or isinstance(cause, refusals)


def problem_of(task: GridTask) -> str:
    """Name the problem of a task in files: tasks that differ in budget or sampler share it."""
    text = json.dumps({"operation": task.operation, "shape": task.shape.as_dict()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def toolchain_text(toolchain: Toolchain) -> str:
    """Return the versions of a toolchain in a line.

    Example:
        >>> toolchain_text(Toolchain("0.1.0", triton="3.6.0"))
        'tool 0.1.0, triton 3.6.0'
    """
    named = zip((each.name for each in fields(toolchain)), astuple(toolchain), strict=True)
    return ", ".join(f"{name} {version}" for name, version in named if version)


def _attempt(task: GridTask, here: ExecutorInfo, number: int) -> Attempt:
    device: Device = here.device
    return Attempt(
        task=task.key,
        number=number,
        token=secrets.token_hex(8),
        host=socket.gethostname(),
        device=device.name,
        power_cap_watts=device.power_cap_watts,
        toolchain=toolchain_text(here.toolchain),
        started=datetime.now(UTC),
        executor="replay" if here.name == "replay" else "gpu",
    )
