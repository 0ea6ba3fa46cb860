"""Shared by baselines: refusals, which of their memory is their inputs', and offsets of packed sequences."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.operation import Baseline

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class OverCopies:
    """A baseline's call over copies of its inputs: in its users' layout, or without unwritten values.

    They stand for the inputs and are no memory of the baseline's own, but for what they take beyond the ``stored``
    bytes of these: padding. None: they have none.

    Example:
        >>> call = OverCopies(lambda: attend(q, keys, values), (keys, values))
        >>> out = call()
    """

    run: "Callable[[], torch.Tensor]"
    copies: "tuple[torch.Tensor, ...]"
    stored: int | None = None

    @property
    def input_bytes(self) -> int:
        """Bytes of the copies that stand for inputs."""
        taken = sum(copy.untyped_storage().nbytes() for copy in self.copies)
        return taken if self.stored is None else min(taken, self.stored)

    def __call__(self) -> "torch.Tensor":
        return self.run()


def refuse_unless_ready(baseline: Baseline, shape: Any) -> None:
    """Raise the reason why a baseline cannot run: the first act of ``prepare``.

    Raises:
        MissingDependencyError: ``available`` says why.
        BaselineUnavailableError: ``unsupported`` says why.
    """
    if (missing := baseline.available()) is not None:
        raise MissingDependencyError(missing)
    if (reason := baseline.unsupported(shape)) is not None:
        raise BaselineUnavailableError(reason)


def offsets_of(lengths: "torch.Tensor") -> "torch.Tensor":
    """Return where each of ``lengths [B]`` begins and the last one ends, int32 ``[B + 1]``."""
    import torch

    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
