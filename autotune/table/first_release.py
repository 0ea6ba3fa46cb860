"""Tables of the first release: schema "1", whose operations had one implementation each and no column for it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from autotune.table.schema import TableColumn, check_column, choice

VERSION: Final = "1"
_RENAMED: Final = {"flex_attention": ("flash_attention", "flex")}
_USUAL: Final = "triton"


def names_of(operation: str) -> tuple[str, str]:
    """Return the operation and the implementation that the rows of an operation of the first release have now."""
    return _RENAMED.get(operation, (operation, _USUAL))


def operation_then(operation: str, implementation: str) -> str | None:
    """Return the operation that an implementation was in the first release, or None if it is younger."""
    renamed = {names: old for old, names in _RENAMED.items()}
    return renamed.get((operation, implementation), operation if implementation == _USUAL else None)


def renamed(columns: Mapping[str, Sequence[Any]], operation: str, where: str) -> dict[str, Sequence[Any]]:
    found = columns["operation"]
    check_column(TableColumn("operation", choice(operation)), found, where)
    names = names_of(operation)
    return {**columns, "operation": [names[0]] * len(found), "implementation": [names[1]] * len(found)}
