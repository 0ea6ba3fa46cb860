"""The local list of shapes that were served the default: what ``autotune search --from-misses`` tunes."""

import errno
import json
import os
import warnings
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from autotune.errors import TableError, one_line
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.shape import Shape
from autotune.table import first_release
from autotune.table.files import read_bytes
from autotune.table.store import home

FILE_NAME = "misses.jsonl"


def record_miss(operation: Operation[Any], shape: Shape) -> None:
    """Append a shape to the list, once a process.

    A list that cannot be written is no reason to fail a request: the first time, a RuntimeWarning names it.
    """
    try:
        _record_once(home() / FILE_NAME, operation.name, shape)
    except OSError as error:
        _warn_once(f"{home() / FILE_NAME} ({error.strerror or error})")
    except TableError as error:  # an account without a home folder
        _warn_once(f"the home folder ({error})")


@lru_cache(maxsize=4096)  # what raises is not kept: a disk that has room again gets the shape
def _record_once(path: Path, operation: str, shape: Shape) -> None:
    line = json.dumps({"operation": operation, **shape.as_dict()}) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        data = (f"\n{line}" if torn else line).encode()
        if os.write(file.fileno(), data) < len(data):  # one write: lines of several processes do not mix
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@cache
def _warn_once(where: str) -> None:
    message = f"missed shapes cannot be recorded in {where}; `autotune search --from-misses` will not find them"
    warnings.warn(message, RuntimeWarning, stacklevel=5)


def read_misses(root: Path | None = None) -> list[tuple[Operation[Any], Shape]]:
    """Return the distinct shapes of the list, in the order they were first missed.

    A line that is not a shape of a registered operation is passed over with a warning that names it.

    Raises:
        TableError: the list cannot be read.
    """
    path = (root or home()) / FILE_NAME
    if not path.exists() and not path.is_symlink():
        return []
    found: dict[tuple[str, Shape], Operation[Any]] = {}
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        if line.startswith(b"{") and not line.endswith(b"}"):
            continue  # torn by a full disk: the shape will be missed again
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
