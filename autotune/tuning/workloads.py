"""Workloads: the problems that are tuned, by which implementations, and in a replay the recorded shapes that answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.device import Device
from autotune.dispatch.among import why_unsupported
from autotune.errors import InvalidShapeError, MissingDependencyError, UnknownNameError, UsageError
from autotune.executor import Executor
from autotune.executor.replay import ReplayExecutor
from autotune.executor.select import ExecutorInfo
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.registry import get_implementation, implementation_names, list_names, our_implementations
from autotune.search import Observer
from autotune.shape import Shape
from autotune.workload import Workload


@dataclass(frozen=True, slots=True)
class Answer:
    """A workload, and the shape whose search answers it, by these implementations; or why a replay has none.

    ``shape`` is the one that was asked for, or in a replay the recorded one nearest to it.
    """

    operation: Operation[Any]
    asked: Shape
    shape: Shape
    implementations: tuple[Implementation[Any], ...]
    missing: MissingDependencyError | None = None

    @property
    def key(self) -> tuple[str, Shape]:
        """Name its search: answers with equal keys share one."""
        return self.operation.name, self.shape


def find_implementations(
    operation: Operation[Any], shape: Shape, device: Device, names: Sequence[str] = ()
) -> tuple[Implementation[Any], ...]:
    """Return the implementations to tune: those of these names, or all of ours that support the shape on the device.

    Raises:
        UnknownNameError: a name is not registered, or none is ours.
        InvalidShapeError: none supports the shape.
        UsageError: a search could not measure it (``Operation.unsearchable``).
    """
    if (problem := operation.unsupported(shape)) is not None:
        raise InvalidShapeError(problem)
    if (problem := operation.unsearchable(shape)) is not None:
        raise UsageError(problem)
    for name in names:
        if name not in implementation_names(operation.name):
            allowed = list_names(operation.name)
            raise UnknownNameError(f"implementations={name!r} of {operation.name} is unknown; registered: {allowed}")
    named = [get_implementation(operation.name, name) for name in dict.fromkeys(names)]
    wanted = named or our_implementations(operation.name)
    supported = [each for each in wanted if each.supports(shape, device) is None]
    if not supported:
        raise InvalidShapeError(why_unsupported(wanted, shape, device))
    return tuple(wanted if names else supported)


def find_answers(
    workloads: Sequence[Workload], executor: Executor | ExecutorInfo, names: Sequence[str] = ()
) -> list[Answer]:
    """Find the search that answers each workload, in their order, with the errors of ``find_implementations``."""
    answers = []
    for operation, shape in workloads:
        chosen = find_implementations(operation, shape, executor.device, names)
        answer = Answer(operation, shape, shape, chosen)
        answers.append(_recorded(answer, executor) if isinstance(executor, ReplayExecutor) else answer)
    return answers


def without_stand_in(answer: Answer) -> Answer:
    """Return an answer; in place of one by another shape than was asked for, why there is none."""
    if answer.missing is not None or answer.shape == answer.asked:
        return answer
    reason = (
        f"no sweep of {answer.asked} is recorded, so what is served for it can be judged on a GPU alone; "
        f"the nearest that is recorded is {answer.shape}"
    )
    return replace(answer, shape=answer.asked, missing=MissingDependencyError(reason))


def take_turns(answers: Sequence[Answer], executor: Executor | ExecutorInfo, observer: Observer) -> Iterator[Answer]:
    """Yield the answers to search, each search once; those that a replay lacks come first. Report the stand-ins."""
    yield from (each for each in answers if each.missing is not None)
    answered = [each for each in answers if each.missing is None]
    if executor.name == "replay" and answered:
        compiles = any(tuned.compiles_ahead for each in answered for tuned in each.implementations)
        observer.on_replay(executor.device, compiles=compiles)
    seen = set()
    for each in answered:
        if each.shape != each.asked:
            observer.on_nearest(each.asked, each.shape, is_tuned=each.key in seen)
        if each.key not in seen:
            seen.add(each.key)
            yield each


def _recorded(answer: Answer, executor: ReplayExecutor) -> Answer:
    """Answer by the nearest shape at which one of the implementations is recorded; a search leaves the others out."""
    found, missing = [], None
    for each in answer.implementations:
        try:
            found.append(executor.nearest(answer.operation, answer.asked, [each.name]))
        except MissingDependencyError as error:
            missing = missing or error
    if not found:
        return replace(answer, missing=missing)
    return replace(answer, shape=min(found, key=lambda shape: (answer.asked.distance(shape), repr(shape))))
