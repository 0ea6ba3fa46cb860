"""Kernels under ``autotune.tuned``: objects here, and names of modules for other processes."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from types import ModuleType
from typing import Any, Final, Protocol
from weakref import ReferenceType, ref

from autotune.errors import UsageError
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.references import module_name, require_form

# What ends the references of their operations, and of their implementations, which are called so.
OPERATION_END: Final = ".operation"
IMPLEMENTATION_END: Final = ".implementation"
OWN_IMPLEMENTATION: Final = "triton"
PROMPT: Final = re.compile(r"_+\d*")
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


class OwnKernels:
    """Kernels by their operations; they are not kept alive."""

    def __init__(self) -> None:
        self._kernels: dict[str, ReferenceType[OwnKernel]] = {}

    def put(self, kernel: OwnKernel) -> bool:
        """Add a kernel in the place of the one that had its operation; return True if one ever had it."""
        was_known = kernel.name in self._kernels
        self._kernels[kernel.name] = ref(kernel)
        return was_known

    def find(self, operation: str) -> OwnKernel | None:
        """Return the kernel that an operation stands for, None where none does or it is gone."""
        found = self._kernels.get(operation)
        return None if found is None else found()

    def names(self) -> list[str]:
        """Return the operations of those that live, in the order of registration."""
        return [name for name, kernel in list(self._kernels.items()) if kernel() is not None]


def place_of(kernel: OwnKernel) -> str:
    """Return where a kernel is, for messages."""
    return kernel.reference or f"a kernel of {kernel.modules[0]}"


def is_of(reference: str, kernel: OwnKernel) -> bool:
    """Return True if an operation's reference may be a kernel's: into one of its modules, or one that imports it."""
    module = reference.partition(":")[0]
    spec = getattr(sys.modules.get(module), "__spec__", None)
    is_there = module in _modules_of(kernel) or bool(getattr(spec, "_initializing", False))
    return reference.endswith(OPERATION_END) and (is_there or reference == f"{kernel.reference}{OPERATION_END}")


def may_replace(kernel: OwnKernel, before: OwnKernel) -> bool:
    """Return True if a kernel is the other one defined again, and no namesake in another module."""
    is_gone = not any(module in sys.modules for module in before.modules)
    return is_gone or not _modules_of(kernel).isdisjoint(_modules_of(before))


def require_reference(kernel: OwnKernel) -> str:
    """Return the place of a kernel, ``"module:name"``; UsageError where other processes cannot find it."""
    if not (reference := kernel.reference):
        expected = "by which other processes find it; bind it to one at the top of a module"
        raise UsageError(f"operation={kernel.name!r}: no module has a name for its kernel, {expected}")
    require_form(reference, f"operation={kernel.name!r}")
    return reference


def _modules_of(kernel: OwnKernel) -> set[str]:
    return set(map(module_name, kernel.modules))


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
    """Return what the names of a module are bound to, but for those of a prompt, such as ``_`` and ``_12``."""
    found = sys.modules.get(module)
    if not isinstance(found, ModuleType) or module == "builtins":
        return {}
    return {name: value for name, value in list(vars(found).items()) if not PROMPT.fullmatch(name)}
