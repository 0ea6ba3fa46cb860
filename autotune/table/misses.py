"""The local list of shapes that were served the default: what ``autotune search --from-misses`` tunes."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from autotune.errors import TableError
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.shape import Shape
from autotune.table.store import home

FILE_NAME = "misses.jsonl"


def record_miss(operation: Operation[Any], shape: Shape) -> None:
    """Append a shape to the list, once a process; a list that cannot be written is no reason to fail a request."""
    _record_once(home() / FILE_NAME, operation.name, shape)


@cache
def _record_once(path: Path, operation: str, shape: Shape) -> None:
    line = json.dumps({"operation": operation, **shape.as_dict()}) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            # One write: lines of several processes do not mix.
            os.write(file.fileno(), (f"\n{line}" if torn else line).encode())
    except OSError:
        pass


def read_misses(root: Path | None = None) -> list[tuple[Operation[Any], Shape]]:
    """The distinct shapes of the list, in the order they were first missed.

    Raises:
        TableError: a line is not a shape of a known operation.
    """
    path = (root or home()) / FILE_NAME
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found: dict[tuple[str, Shape], None] = {}
    for number, line in enumerate(lines, start=1):
        if line.startswith("{") and not line.endswith("}"):
            continue  # torn by a full disk: the shape will be missed again
        try:
            fields = json.loads(line)
            operation = get_operation(fields.pop("operation"))
            found[operation.name, operation.shape_class(**fields)] = None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TableError(f"{path}: line {number} is not a missed shape ({error}); remove the line") from error
    return [(get_operation(name), shape) for name, shape in found]
