"""Tasks: the units of a grid, each the search of one problem on one kind of device, as plain data."""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from autotune.errors import UsageError
from autotune.registry import get_operation
from autotune.search import DEFAULT_SAMPLER, Sampler
from autotune.shape import Shape
from autotune.workload import read_workloads

KEY_DIGITS: Final = 16
# A search ends soon after its budget, and starts its children before; what takes longer has hung, or its machine died.
LOST_BUDGETS, LOST_SECONDS = 3.0, 600.0


@dataclass(frozen=True, kw_only=True)
class GridTask:
    """The search of one problem: the arguments of one call of ``autotune.tune``.

    Attributes:
        operation: the operation's name.
        shape: the problem.
        device: the kind of device that it is for, by name; empty for any.
        implementations: the names of those that are tuned; all of ours by default.
        budget: seconds; None: no limit.
        trials: candidates that are measured at most; None: no limit.
        sampler: as in ``tune``.
        seed: as in ``tune``.
        priority: tasks of a higher one begin earlier; no part of ``key``.

    Example:
        >>> GridTask(operation="flash_attention", shape=shape, device="NVIDIA H200").key
        '5f0c3a0d1b6e7a42'
    """

    operation: str
    shape: Shape
    device: str = ""
    implementations: tuple[str, ...] = ()
    budget: float | None = 60.0
    trials: int | None = 120
    sampler: Sampler = DEFAULT_SAMPLER
    seed: int = 0
    priority: int = 0

    @cached_property
    def key(self) -> str:
        """Name the task in every file and message: equal tasks have equal keys, on every machine."""
        text = json.dumps(replace(self, priority=0).as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]

    @property
    def longest_seconds(self) -> float:
        """Seconds after which an attempt that did not end never will; infinite without a budget."""
        return math.inf if self.budget is None else LOST_BUDGETS * self.budget + LOST_SECONDS

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them; ``from_dict`` reads them."""
        return {
            "operation": self.operation,
            "shape": self.shape.as_dict(),
            "device": self.device,
            "implementations": list(self.implementations),
            "budget": None if self.budget is None else float(self.budget),
            "trials": self.trials,
            "sampler": self.sampler,
            "seed": self.seed,
            "priority": self.priority,
        }

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "GridTask":
        """Return the task of ``as_dict``.

        Raises:
            UsageError: a field is missing, unknown or out of range, or the operation is not registered here.
        """
        try:
            operation = get_operation(given["operation"])
            shape = operation.shape_class(**given["shape"])
            rest = {name: value for name, value in given.items() if name not in ("operation", "shape")}
            task = cls(
                operation=operation.name, shape=shape, **{**rest, "implementations": tuple(rest["implementations"])}
            )
        except (KeyError, TypeError) as error:
            raise UsageError(f"task={given!r} is not a task: {type(error).__name__}: {error}") from error
        read_workloads([(task.operation, task.shape)], None)
        return task

    def __str__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        return f"{self.operation}: {self.shape}{where}"
