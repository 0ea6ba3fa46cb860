"""Arguments of ``tune`` that are refused before anything is searched."""

import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from autotune.errors import UsageError


def check_numbers(budget: float | None, trials: int | None, seed: int) -> None:
    """Validate the numbers among the arguments of ``tune``."""
    if budget is not None and not (isinstance(budget, int | float) and 0 < budget < math.inf):
        raise UsageError(f"budget={budget!r} is not allowed; expected more than 0 seconds, or None for no limit")
    if trials is not None and not (isinstance(trials, int) and trials >= 1):
        raise UsageError(f"trials={trials!r} is not allowed; expected an integer from 1, or None for no limit")
    if not (isinstance(seed, int) and 0 <= seed < 2**32):
        raise UsageError(f"seed={seed!r} is not allowed; expected an integer from 0 to {2**32 - 1}")


def read_names(implementations: object) -> tuple[str, ...]:
    """Return names of implementations, given as one or several; each is judged where it is looked up."""
    if isinstance(implementations, str):
        return (implementations,)
    if not isinstance(implementations, Iterable):
        expected = "expected names such as ('triton', 'flex')"
        raise UsageError(f"implementations={implementations!r} is not allowed; {expected}")
    return tuple(implementations)


def why_unwritable(root: Path) -> str | None:
    """Return the reason why a folder cannot hold tables, or None; leave nothing there."""
    parent = next(path for path in (root, *root.parents) if os.path.exists(path))
    try:
        with tempfile.TemporaryFile(dir=parent):  # permissions do not tell of read-only file systems
            return None
    except OSError as error:
        return error.strerror or str(error)
