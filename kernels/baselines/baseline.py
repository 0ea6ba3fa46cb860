"""What the systems that are compared have in common: whether they are here, what they can do, and one call."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from autotune.errors import BaselineUnavailableError, MissingDependencyError

if TYPE_CHECKING:
    import torch


class Baseline(Protocol):
    """One way to compute an operation that is compared, not tuned by us; it imports its library when it is asked."""

    @property
    def name(self) -> str:
        """As tables and ``--against`` call it."""

    def available(self) -> str | None:
        """None where it can run, or what is missing here and how to install it; never raises."""

    def unsupported(self, shape: Any) -> str | None:
        """What of a shape it cannot compute, or None; needs neither its library nor a device."""

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        """A call over the operation's inputs, with everything done that a user would do once, before the first step.

        What is timed is the call alone, so what compiles has been run once here. It returns the operation's first
        output, in its sizes.

        Raises:
            MissingDependencyError: ``available`` says why.
            BaselineUnavailableError: ``unsupported`` says why, or this device cannot do it.
        """


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
