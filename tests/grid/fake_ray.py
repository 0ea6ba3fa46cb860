"""Stands for the module ``ray``: nodes that answer tasks at once, die, or never answer, by a script."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any


class FakeRayError(Exception):
    """A failure of the cluster."""


class FakeTaskError(FakeRayError):
    """An exception in a task."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class FakeCancelledError(FakeRayError):
    """A task was cancelled."""


Answer = Callable[[str, str], Any]  # by the encoded task and the node; an exception is raised, None is no answer yet


class FakeRay:
    """Implements what ``autotune.grid.ray_engine`` calls of Ray.

    Attributes:
        submitted: the options and arguments of each task, in order.
        most: the most tasks that a node had at once.
    """

    def __init__(self, nodes: Mapping[str, Mapping[str, float]], answer: Answer) -> None:
        self.living = {name: dict(resources) for name, resources in nodes.items()}
        self.answer = answer
        self.submitted: list[tuple[dict[str, Any], tuple[Any, ...]]] = []
        self.flying: dict[int, str] = {}
        self.cancelled: list[int] = []
        self.killed: list[int] = []
        self.most = 0
        self.exceptions = SimpleNamespace(
            RayError=FakeRayError, RayTaskError=FakeTaskError, TaskCancelledError=FakeCancelledError
        )
        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        self.util = SimpleNamespace(scheduling_strategies=strategies)

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": name, "Alive": True, "Resources": has} for name, has in self.living.items()]

    def remote(self, function: object) -> Any:
        def options(**given: Any) -> Any:
            return SimpleNamespace(remote=lambda *arguments: self._submit(given, arguments))

        return SimpleNamespace(options=options)

    def _submit(self, options: dict[str, Any], arguments: tuple[Any, ...]) -> int:
        self.submitted.append((options, arguments))
        reference = len(self.submitted) - 1
        self.flying[reference] = options["scheduling_strategy"]
        of_node = sum(node == options["scheduling_strategy"] for node in self.flying.values())
        self.most = max(self.most, of_node)
        return reference

    def wait(self, references: Sequence[int], *, num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        ready = [each for each in references if each in self.cancelled or self._answer(each) is not None][:num_returns]
        return ready, [each for each in references if each not in ready]

    def get(self, reference: int) -> str:
        if reference in self.cancelled:
            raise FakeCancelledError
        answer = self._answer(reference)
        self.flying.pop(reference, None)
        if isinstance(answer, BaseException):
            raise answer
        return str(answer)

    def cancel(self, reference: int, *, force: bool = False) -> None:
        self.cancelled.append(reference)
        self.killed += [reference] * force
        self.flying.pop(reference, None)

    def _answer(self, reference: int) -> Any:
        options, arguments = self.submitted[reference]
        return self.answer(arguments[0], options["scheduling_strategy"])
