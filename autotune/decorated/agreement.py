"""Agreement of a decorator with its kernel: the parameters of configs and of the key, and those of the reference."""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

from autotune.decorated.configs import OPTIONS
from autotune.decorated.signature import Signature
from autotune.errors import UsageError, suggestion


def check_configs(argument: str, given: Collection[str], signature: Signature) -> None:
    """Refuse a parameter of the configs that is neither the kernel's nor an option of a launch."""
    for name in sorted({*given} - launch_options() - {*signature.names}):
        kernel = f"{signature.function.__name__}{suggestion(name, (*signature.names, *OPTIONS))}"
        raise UsageError(f"{argument} has {name!r}, no parameter of {kernel}: {', '.join(signature.names)}")


def check_given(key: Collection[str], configs: Sequence[Any], given: Collection[str], signature: Signature) -> None:
    """Refuse a key that configs give, and a config that lacks a parameter of the others which has no default.

    Args:
        configs: Triton's.
        given: all that some config has.
    """
    if both := [name for name in key if name in given]:
        raise UsageError(f"key has {both[0]!r}, which the configs give; expected arguments of a launch")
    filled = {*signature.defaults, *signature.heuristics}
    needed = [name for name in signature.names if name in given and name not in filled]
    for config in configs:
        if lacking := [name for name in needed if name not in config.kwargs]:
            raise UsageError(f"configs has {config}, which lacks {lacking[0]!r}; others have it, and it has no default")


@cache
def launch_options() -> frozenset[str]:
    """Return the options that a launch takes beside a kernel's parameters, on any vendor that Triton compiles for."""
    from triton.backends import backends

    modules = [vars(sys.modules[each.compiler.__module__]) for each in backends.values()]
    classes = [each for names in modules for each in names.values() if isinstance(each, type)]
    fields = [each for kind in classes if dataclasses.is_dataclass(kind) for each in dataclasses.fields(kind)]
    return frozenset((*OPTIONS, *(each.name for each in fields)))


def check_reference(reference: Callable[..., Any] | None, wanted: Collection[str]) -> None:
    """Refuse a reference that asks for what the arguments of a search, the ``wanted``, do not have."""
    if reference is None:
        return
    try:
        parameters = inspect.signature(reference).parameters
    except (TypeError, ValueError):  # of a function in C
        expected = f"expected a function of some of {', '.join(wanted)}, such as a lambda around it"
        raise UsageError(f"reference={reference!r} does not say what its parameters are; {expected}") from None
    for name, each in parameters.items():
        is_open = each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) or each.default is not each.empty
        if not is_open and (name not in wanted or each.kind is each.POSITIONAL_ONLY):
            by = " by position alone" if name in wanted else suggestion(name, wanted)
            raise UsageError(f"reference= takes {name!r}{by}; expected some of {', '.join(wanted)}, by name")
