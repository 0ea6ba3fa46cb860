"""The suites by name; each is imported when it is asked for."""

import importlib
from typing import Final

from autotune.comparison.suites.suite import Suite
from autotune.errors import UnknownNameError

SUITES: Final = ("exercise", "blocks", "assignment", "gaudi", "cudnn-paged", "axes")


def find_suite(name: str) -> Suite:
    """The suite of that name; loads torch.

    Raises:
        UnknownNameError: there is none.

    Example:
        >>> find_suite("cudnn-paged").name
        'cudnn-paged'
    """
    if name not in SUITES:
        raise UnknownNameError(f"suite={name!r} is unknown; allowed: {', '.join(SUITES)}")
    found = importlib.import_module(f"autotune.comparison.suites.{name.replace('-', '_')}").SUITE
    assert isinstance(found, Suite)
    return found
