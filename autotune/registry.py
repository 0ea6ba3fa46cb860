"""Names of operations: lazy ``"module:attribute"`` references; the only file that names ours."""

import importlib
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from autotune.errors import InvalidShapeError, MissingDependencyError, UnknownNameError
from autotune.operation import Kernel, Operation
from autotune.shape import Shape

ENTRY_POINT_GROUP = "autotune.operations"


class Reference(NamedTuple):
    """Where an operation and its kernel are found; nothing is imported until asked for."""

    operation: str
    kernel: str


_references: dict[str, Reference] = {
    "flash_attention": Reference(
        "autotune.search_spaces.flash_attention:OPERATION", "autotune.kernels.flash_attention:KERNEL"
    ),
    # Takes the same shapes, so it solves one only where it is named.
    "flex_attention": Reference(
        "autotune.search_spaces.flex_attention:OPERATION", "autotune.kernels.flex_attention:KERNEL"
    ),
    "paged_decode": Reference("autotune.search_spaces.paged_decode:OPERATION", "autotune.kernels.paged_decode:KERNEL"),
    "paged_prefill": Reference(
        "autotune.search_spaces.paged_prefill:OPERATION", "autotune.kernels.paged_prefill:KERNEL"
    ),
}


def register(name: str, *, operation: str, kernel: str) -> None:
    """Add an operation of your own: two ``"module:attribute"`` references, imported when first needed.

    Installed packages do the same without a call, by an entry point of the group ``autotune.operations`` whose object
    is a ``Reference``.

    Raises:
        UnknownNameError: the name is taken by another reference.
    """
    added = Reference(operation, kernel)
    if _references.get(name, added) != added:
        raise UnknownNameError(f"operation={name!r} is registered already as {_references[name]}; choose another name")
    _references[name] = added


def operation_names() -> list[str]:
    """The names of all registered operations, sorted."""
    return sorted({*_references, *(point.name for point in _points())})


def get_operation(name: str) -> Operation[Any]:
    """The operation of that name.

    Raises:
        UnknownNameError: no such operation; the message lists the registered ones.
    """
    found = _load(reference(name).operation)
    assert isinstance(found, Operation)
    return found


def load_kernel(name: str) -> Kernel:
    """The kernel of that operation; imports torch and triton."""
    kernel: Kernel = _load(reference(name).kernel)
    return kernel


def operation_for(shape: Shape) -> Operation[Any]:
    """The operation that solves this shape: of several that support it, ours, then the one that was registered first.

    Raises:
        UnknownNameError: no operation takes shapes of this class.
        InvalidShapeError: those that do support other ones; the message says what each expects.
    """
    problems = []
    for name in [*_references, *(point.name for point in _points())]:
        operation = get_operation(name)
        if type(shape) is operation.shape_class:
            if (problem := operation.unsupported(shape)) is None:
                return operation
            problems.append(problem)
    if problems:
        raise InvalidShapeError("; ".join(problems))
    raise UnknownNameError(f"shape={shape!r}: no operation takes a {type(shape).__name__}")


def reference(name: str) -> Reference:
    """Where the operation of that name and its kernel are found."""
    if name in _references:
        return _references[name]
    for point in _points():
        if point.name == name:
            return Reference(*point.load())
    raise UnknownNameError(f"operation={name!r} is unknown; registered: {', '.join(operation_names())}")


@cache
def _points() -> tuple[Any, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


@cache
def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton"):
            raise
        raise missing_package(error.name) from None


def missing_package(name: str) -> MissingDependencyError:
    """That a package is absent which kernels need, and what to do."""
    return MissingDependencyError(
        f"{name} is not installed; `pip install torch triton`, and `autotune doctor` checks what is there"
    )
