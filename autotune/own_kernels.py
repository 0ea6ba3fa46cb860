"""Kernels under ``autotune.tuned``: objects here, and names of modules for other processes."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from types import ModuleType
from typing import Any, Final, Protocol

from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.references import module_name

WRAPPERS: Final = 16  # around a kernel at most; a chain that is longer may have no end


class OwnKernel(Protocol):
    """A kernel of a user's that is an operation, and the implementation of it."""

    name: str
    modules: tuple[str, ...]

    @property
    def operation(self) -> Operation[Any]:
        """Return what it computes."""

    @property
    def implementation(self) -> Implementation[Any]:
        """Return how it computes that."""

    @property
    def reference(self) -> str:
        """Return ``"module:name"``, by which another process finds it; "" where no module has a name for it."""


def find_reference(kernel: object, function: Callable[..., Any], modules: Sequence[str]) -> str:
    """Return ``"module:name"`` of a kernel over a function, "" where no module holds it.

    The name need not be the function's, nor the module: a kernel of a library can be tuned by anyone. So the function's
    own place is asked first, then the other names of ``modules``, then those of all that is imported. While the
    decorator has not returned there is none, nor is there for a kernel that only a container or a closure holds.
    """
    place = function.__qualname__.split(".")
    for module in modules:
        names = _names(module)
        own = reduce(lambda owner, name: getattr(owner, name, None), place[1:], names.get(place[0]))
        bound = ".".join(place) if is_around(own, kernel) else ""
        bound = bound or next((name for name, value in names.items() if is_around(value, kernel)), "")
        if bound:
            return f"{module_name(module)}:{bound}"
    elsewhere = (
        f"{module_name(module)}:{name}"
        for module in list(sys.modules)
        for name, value in _names(module).items()
        if value is kernel
    )
    return next(elsewhere, "")


def is_around(value: object, kernel: object) -> bool:
    """Return True for a kernel and for what wraps it in its ``fn``, as ``triton.heuristics`` does."""
    return any(each is kernel for each in _unwrapped(value))


def _unwrapped(value: object) -> Iterator[object]:
    for _ in range(WRAPPERS):
        yield value
        try:  # the plain attribute: the classes of a module may compute others as they like
            value = object.__getattribute__(value, "__dict__")["fn"]
        except (AttributeError, KeyError, TypeError):
            return


def _names(module: str) -> dict[str, object]:
    found = sys.modules.get(module)
    return dict(vars(found)) if isinstance(found, ModuleType) else {}
