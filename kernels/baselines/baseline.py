"""What baselines share: refusing what they cannot do, and saying which of their memory is their inputs'."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.operation import Baseline

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class OverCopies:
    """A baseline's call over copies of its inputs: as its users hold them from the start, or without what nobody wrote.

    They stand for the inputs and are no memory of the baseline's own.

    Example:
        >>> call = OverCopies(lambda: attend(q, keys, values), (keys, values))
        >>> out = call()
    """

    run: "Callable[[], torch.Tensor]"
    copies: "tuple[torch.Tensor, ...]"

    def __call__(self) -> "torch.Tensor":
        return self.run()


def refuse_unless_ready(baseline: Baseline, shape: Any) -> None:
    """What ``prepare`` begins with.

    Raises:
        MissingDependencyError: ``available`` says why.
        BaselineUnavailableError: ``unsupported`` says why.
    """
    if (missing := baseline.available()) is not None:
        raise MissingDependencyError(missing)
    if (reason := baseline.unsupported(shape)) is not None:
        raise BaselineUnavailableError(reason)
