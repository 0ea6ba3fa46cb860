"""The problems of one entry of a grid file: the product of its lists, by the rules of ``autotune search``'s options."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from autotune.console.shape_options import DECLARATIONS, ShapeOptions
from autotune.console.shapes import KINDS, PHASES, Problem, Wanted, describe, kind_of, why_not_cached
from autotune.errors import UnknownNameError, UsageError
from autotune.grid.grid_entry import GridEntry
from autotune.models import find_model
from autotune.operation import Operation
from autotune.registry import get_operation, implementation_names, list_names


def problems_of(entry: GridEntry) -> tuple[list[Problem], list[str]]:
    """Return the problems of an entry, each once, and notes on what they leave out.

    Raises:
        UsageError: a name is unknown, or a size is not one of the operation; the message names it.
    """
    found = list(_described_by_fields(entry) if entry.shapes else _described_by_lists(entry))
    problems = dict.fromkeys(problem for wanted in found for problem in wanted.problems)
    for operation in {operation.name for operation, _ in problems}:
        for name in entry.implementations:
            if name not in implementation_names(operation):
                allowed = list_names(operation)
                raise UnknownNameError(f"implementations={name!r} of {operation} is unknown; registered: {allowed}")
    return list(problems), list(dict.fromkeys(note for wanted in found for note in wanted.notes))


def _described_by_fields(entry: GridEntry) -> Iterator[Wanted]:
    beside = {"models": entry.models, "lengths": entry.lengths, "batches": entry.batches, "dtypes": entry.dtypes}
    for name, value in {**beside, **entry.options}.items():
        if value:
            raise UsageError(f"{name}={value!r} and shapes, which name all sizes, exclude each other; leave one out")
    for operation in entry.operations or [None]:
        yield describe(ShapeOptions(operation=operation, shape=entry.shapes))


def _described_by_lists(entry: GridEntry) -> Iterator[Wanted]:
    if not (entry.models or entry.operations):
        raise UsageError("it names no problem; expected models, operations or shapes")
    operations = [get_operation(name) for name in entry.operations or PHASES.values()]
    for model, operation in itertools.product(entry.models or [None], operations):
        may_lack_it = model is not None and not entry.operations and kind_of(operation).is_cached
        if may_lack_it and (why := why_not_cached(found := find_model(str(model)), operation.name)) is not None:
            yield Wanted((), (f"{found.name} {why}: {operation.name} is left out",))
            continue
        for options in _combinations(entry, operation, operations):
            yield describe(replace(options, model=model))


def _combinations(
    entry: GridEntry, operation: Operation[Any], all_of_them: list[Operation[Any]]
) -> Iterator[ShapeOptions]:
    """Yield each combination of the options that an operation takes; what only others of the entry take is theirs."""
    kind = kind_of(operation)
    taken = {name for each in all_of_them for name in kind_of(each).own}
    others = {name for each in KINDS.values() if each is not kind for name in each.own} & taken
    lists = {name: values for name, values in entry.options.items() if name not in others}
    if entry.dtypes:
        lists["dtype"] = entry.dtypes
    sizes: dict[str, Any] = {"context" if kind.is_cached else "seq": entry.lengths, "batch": entry.batches}
    for values in itertools.product(*(map(_checked, itertools.repeat(name), each) for name, each in lists.items())):
        yield ShapeOptions(operation=operation.name, **sizes, **dict(zip(lists, values, strict=True)))


def _checked(name: str, value: Any) -> Any:
    """Return a value of an option; UsageError for one of another type than the option's."""
    kind = DECLARATIONS[name].kind
    expected = "a text" if kind is str else "true or false" if kind is bool else "an integer"
    is_right = isinstance(value, kind) if isinstance(kind, type) else type(value) is int
    if not is_right:
        raise UsageError(f"{name}={value!r} is not allowed; expected {expected}")
    return value
