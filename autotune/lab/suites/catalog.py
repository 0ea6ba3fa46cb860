"""The suites by name; each is imported when it is asked for."""

import importlib
from typing import Final

from autotune.errors import UnknownNameError
from autotune.lab.suites.suite import Suite

SUITES: Final = ("exercise", "blocks", "assignment", "gaudi", "cudnn-paged", "axes")


def find_suite(name: str) -> Suite:
    """Import a suite, which loads torch.

    Raises:
        UnknownNameError: no suite has this name.

    Example:
        >>> find_suite("cudnn-paged").name
        'cudnn-paged'
    """
    if name not in SUITES:
        raise UnknownNameError(f"suite={name!r} is unknown; allowed: {', '.join(SUITES)}")
    found = importlib.import_module(f"autotune.lab.suites.{name.replace('-', '_')}.measure").SUITE
    assert isinstance(found, Suite)
    return found
