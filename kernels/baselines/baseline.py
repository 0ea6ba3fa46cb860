"""What every baseline begins with: refusing what it cannot do."""

from typing import Any

from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.operation import Baseline


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
