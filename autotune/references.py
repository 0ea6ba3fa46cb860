"""``"module:attribute"`` references: their form, what they name, and those that installed packages bring."""

import importlib
import re
import sys
from functools import cache, reduce
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from autotune.errors import AutotuneError, MissingDependencyError, UnknownNameError, UsageError, one_line

FORM: Final = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*"
EXPECTED: Final = "'module:attribute', such as 'my_package.space:IMPLEMENTATION', of a module that can be imported here"

OPERATION_ENTRY_POINTS: Final = "autotune.operations"
IMPLEMENTATION_ENTRY_POINTS: Final = "autotune.implementations"
TABLE_ENTRY_POINTS: Final = "autotune.tables"
ENTRY_POINT_GROUPS: Final = (OPERATION_ENTRY_POINTS, IMPLEMENTATION_ENTRY_POINTS, TABLE_ENTRY_POINTS)

_loaded: Final[dict[str, Any]] = {}  # by reference


def require_form(reference: str, what: str) -> None:
    """Raise UsageError unless a text has the form of a reference; ``what`` names it in the message."""
    if not is_reference(reference):
        raise UsageError(f"{what}: {reference!r} is no reference; expected {EXPECTED}")


def is_reference(reference: object) -> bool:
    """Return True for a text of the form of a reference, ``"module:attribute"``."""
    return isinstance(reference, str) and re.fullmatch(FORM, reference) is not None


def load(path: str) -> Any:
    """Return what a reference of the right form names; UnknownNameError if it is not there."""
    if path not in _loaded:
        _loaded[path] = resolve(path)
    return _loaded[path]


def resolve(path: str) -> Any:
    """Return what a reference names now; ``load`` keeps what it named first. UnknownNameError if it is not there."""
    module, _, attributes = path.partition(":")
    try:
        return reduce(_attribute, attributes.split("."), _module(module))
    except (Exception, SystemExit) as error:  # of a package of somebody else's, which may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "triton"):
            raise missing_package(error.name) from None
        text = f"reference={path!r} cannot be loaded: {one_line(error)}"
        if not isinstance(error, AutotuneError):  # which says itself what it expected
            text += f"; expected {EXPECTED}"
        raise UnknownNameError(text) from error


def instance(found: Any) -> Any:
    """Return what a reference names, or the one object of a class that it names."""
    return _object_of(found) if isinstance(found, type) else found


@cache
def _object_of(owner: type) -> Any:
    return owner()


def installed(group: str) -> tuple[tuple[str, str], ...]:
    """Return names and references of the entry points of a group that installed packages have."""
    return tuple((point.name, point.value) for point in _scan().get(group, ()))


@cache
def _scan() -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of all groups of ours: a scan opens a file of every installed package, so one is made."""
    found = entry_points()
    return {group: tuple(found.select(group=group)) for group in ENTRY_POINT_GROUPS}


def module_name(module: str) -> str:
    """Return the name by which another process imports a module: of a program that runs, that of its file.

    Example:
        >>> module_name("my_package.kernels")
        'my_package.kernels'
    """
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return str(spec.name)
    return Path(getattr(main, "__file__", None) or "__main__").stem


def _module(name: str) -> Any:
    """Import a module, but for the program that runs, which is here already."""
    if name not in sys.modules and name == module_name("__main__"):
        return sys.modules["__main__"]
    return importlib.import_module(name)


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute, or that of the kernel inside a wrapper such as ``triton.heuristics`` makes."""
    while not hasattr(owner, name) and hasattr(owner, "fn"):
        owner = owner.fn
    return getattr(owner, name)


def missing_package(name: str) -> MissingDependencyError:
    """Make the error for an absent package that kernels need; it says how to get it."""
    return MissingDependencyError(
        f"{name} is not installed; `pip install torch triton`, and `autotune doctor` checks what is there"
    )
