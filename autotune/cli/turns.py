"""Which problems are tuned, in which order: those asked for, or in a replay the recorded ones nearest to them."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from autotune.dispatch import MAX_DISTANCE
from autotune.errors import MissingDependencyError
from autotune.executor.replay import ReplayExecutor
from autotune.operation import Operation
from autotune.shape import Shape

Problem = tuple[Operation[Any], Shape]


class Turn(NamedTuple):
    """A problem that can be answered; or, in a replay, one that cannot and why.

    ``is_asked``: the shape is one that was asked for, and not the recorded one that is nearest to it.
    """

    operation: Operation[Any]
    shape: Shape
    missing: MissingDependencyError | None = None
    is_asked: bool = True


def take_turns(problems: Sequence[Problem], executor: Any, console: Console) -> Iterator[Turn]:
    """The problems, or in a replay the recorded ones that are nearest to them, each once; says which.

    Those that a replay cannot answer come first, so that they are known before any other is searched.

    Raises:
        UsageError: a shape is not supported by its operation; before any other is searched.
    """
    for operation, shape in problems:
        operation.space.default(shape, executor.device)  # refuses what the kernel cannot compute
    if not isinstance(executor, ReplayExecutor):
        yield from itertools.starmap(Turn, problems)
        return
    answered = []
    for operation, shape in problems:
        try:
            answered.append((operation, shape, executor.nearest(operation, shape)))
        except MissingDependencyError as error:
            yield Turn(operation, shape, error)
    if answered:
        can_compile = any(operation.compiles_ahead for operation, *_ in answered)
        here = "; compiling and checking happen on this CPU" if can_compile else ""
        console.print(f"no GPU here: times come from a sweep recorded on an {executor.device.name}{here}")
    tuned: set[tuple[str, Shape]] = set()
    for operation, shape, recorded in answered:
        is_tuned = (operation.name, recorded) in tuned
        if recorded != shape:
            console.print(_distance_text(shape, recorded, is_tuned))
        if not is_tuned:
            tuned.add((operation.name, recorded))
            yield Turn(operation, recorded, is_asked=(operation, recorded) in problems)


def _distance_text(shape: Shape, recorded: Shape, is_tuned: bool) -> str:
    """That another shape is tuned than the one asked for, and how far it is."""
    what = "which is tuned above already" if is_tuned else "tuning that"
    distance = shape.distance(recorded)
    far = "" if distance <= MAX_DISTANCE else f" (beyond {MAX_DISTANCE:g} a winner is not served for your shape)"
    return f"not recorded: {shape}; the nearest sweep is {distance:.2f} away in powers of two{far}, {what}"
