"""Workloads: shapes, each with the operation that solves it."""

from collections.abc import Iterable
from typing import Any

from autotune.errors import InvalidShapeError, UnknownNameError, UsageError
from autotune.operation import Operation
from autotune.registry import get_operation, loadable_operations
from autotune.shape import Shape

Workload = tuple[Operation[Any], Shape]


def operation_for(shape: Shape) -> Operation[Any]:
    """Return the first registered operation that supports this shape, ours before others.

    UnknownNameError where none takes shapes of this class; InvalidShapeError, with what each expects, where those that
    do support other ones.
    """
    problems = []
    for operation in loadable_operations():
        if type(shape) is operation.shape_class:
            if (problem := operation.unsupported(shape)) is None:
                return operation
            problems.append(problem)
    if problems:
        raise InvalidShapeError("; ".join(problems))
    raise UnknownNameError(f"shape={shape!r}: no operation takes a {type(shape).__name__}")


def check_shape(operation: Operation[Any], shape: Shape) -> None:
    """Raise UsageError unless an operation takes shapes of this class, which no class derived from its own is."""
    if type(shape) is not operation.shape_class:
        taken = f"operation={operation.name!r} takes {operation.shape_class.__name__}"
        raise UsageError(f"shape={shape!r} is of type {type(shape).__name__}; {taken}")


def read_workloads(
    shapes: Shape | Iterable[Shape | Workload | tuple[str, Shape]], operation: str | None
) -> list[Workload]:
    """Give each shape its operation; UsageError for one that none takes, or of another operation's class."""
    found = []
    for each in shapes if isinstance(shapes, Iterable) and not isinstance(shapes, str) else [shapes]:
        given, shape = each if isinstance(each, tuple) and len(each) == 2 else (None, each)
        if given is not None and not isinstance(given, Operation):
            given = get_operation(given)
        if not isinstance(shape, Shape):
            raise UsageError(f"shapes={shape!r} is of type {type(shape).__name__}; expected a shape, or several")
        if given is None:
            given = operation_for(shape) if operation is None else get_operation(operation)
        check_shape(given, shape)
        found.append((given, shape))
    return found
