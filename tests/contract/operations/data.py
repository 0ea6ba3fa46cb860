"""Data that the contract asks of an operation: values of its shapes' fields, small problems of them, and the truth."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.shape import Shape
from tests.contract.covering import Factors, Row

if TYPE_CHECKING:
    import torch


def _no_slack(inputs: Any) -> float:
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationData:
    """The problems of an operation, and what is true of them by tests' own formula, nowhere near a kernel.

    Attributes:
        fields: values of the fields of its shapes; every pair of them is checked.
        large: the shape of a row as it is tuned, by which configs are valid or not.
        small: a problem that the interpreter computes in a second, of the same binaries.
        truth: every output of inputs, in a dtype.
        own: fields of an implementation that computes shapes which the others do not, by its name.
        slack: how far a statistic (an output beside the first) may be off beside its usual limit.
        compiled: shapes that are compiled for every architecture.
    """

    fields: Factors
    large: Callable[[Row], Shape]
    small: Callable[[Row], Shape]
    truth: "Callable[[Any, torch.dtype], tuple[torch.Tensor, ...]]"
    compiled: tuple[Shape, ...]
    own: Mapping[str, Factors] = field(default_factory=dict)
    slack: Callable[[Any], float] = _no_slack

    def fields_of(self, implementation: str) -> Factors:
        """Return the fields whose pairs an implementation is checked on."""
        return self.own.get(implementation, self.fields)
