"""A kernel under ``autotune.tuned`` before its module has bound it to a name, by which other processes find it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from autotune.references import module_name

TRITON: Final = "triton."  # its wrappers, such as those of ``triton.heuristics``, have what they wrap in ``fn``


@dataclass(frozen=True, slots=True)
class Unbound:
    """The implementation that a kernel will be, the modules that may bind it, and what looks for its reference there.

    A decorator returns before its kernel has a name, and the name need not be the function's: nor need the module be,
    where a kernel of a library is tuned.
    """

    implementation: str
    modules: tuple[str, ...]
    find_reference: Callable[[], str]


def find_reference(kernel: object, function: Callable[..., Any], modules: tuple[str, ...]) -> str:
    """Return ``"module:name"`` of a kernel over a function, by the function's name where that is bound to it; "" where
    there is none.

    There is none while the decorator has not returned, and for a kernel that only a container or a closure holds. One
    inside a function has none either, whoever holds it: two of them would share it.
    """
    place = function.__qualname__
    if "<locals>" in place:
        return ""
    for module in modules:
        names = dict(vars(sys.modules[module])) if module in sys.modules else {}
        first, *rest = place.split(".")
        own = reduce(lambda owner, name: getattr(owner, name, None), rest, names.get(first))
        bound = place if _holds(own, kernel) else next((each for each in names if _holds(names[each], kernel)), "")
        if bound:
            return f"{module_name(module)}:{bound}"
    return ""


def _holds(value: object, kernel: object) -> bool:
    while value is not kernel and type(value).__module__.startswith(TRITON):
        value = getattr(value, "fn", None)
    return value is kernel
