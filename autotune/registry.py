"""Names of operations and implementations: lazy ``"module:attribute"`` references, and kernels under a decorator."""

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from autotune.errors import AutotuneError, UnknownNameError, UsageError, require_text
from autotune.implementation import Implementation, Kernel, forget_sources
from autotune.operation import Baseline, Definition, Operation, why_no_name
from autotune.ours import IMPLEMENTATIONS, OPERATIONS
from autotune.own_kernels import OwnKernel
from autotune.references import (
    IMPLEMENTATION_ENTRY_POINTS,
    OPERATION_ENTRY_POINTS,
    TABLE_ENTRY_POINTS,
    forget,
    installed,
    instance,
    load,
    module_name,
    require_form,
)

_operations: dict[str, str] = dict(OPERATIONS)
_implementations: dict[tuple[str, str], str] = dict(IMPLEMENTATIONS)
_registering: Final[dict[str, str]] = {}  # modules that call ``register``, by operation
_kernels: WeakValueDictionary[str, OwnKernel] = WeakValueDictionary()  # under ``autotune.tuned``, by operation

# Of kernels under ``autotune.tuned``: what ends the references of their operations, and of their implementations, which
# are called so.
KERNELS, KERNEL_END, KERNEL = ".operation", ".implementation", "triton"
# Called with the operation of an implementation that is new, or defined again: what forgets older answers.
on_registered: Final[list[Callable[[str], None]]] = []


def register(name: str, operation: str) -> None:
    """Add an operation of your own by a ``"module:attribute"`` reference to its ``Operation``, imported when needed.

    Installed packages do the same without a call, by an entry point ``name = "module:attribute"`` of the group
    ``autotune.operations``.

    Raises:
        UsageError: the reference is no ``"module:attribute"``, or the name cannot be that of a folder of tables.
        UnknownNameError: the name is taken by another reference.

    Example:
        >>> autotune.register("rmsnorm", "my_package.operation:OPERATION")
    """
    if (reason := why_no_name(name)) is not None:
        raise UsageError(reason)
    require_form(operation, f"operation={name!r}")
    caller = sys._getframe(1)
    if caller.f_code.co_name == "<module>":  # so that its import does it again
        _registering.setdefault(name, module_name(caller.f_globals.get("__name__", "__main__")))
    kernel = _kernels.get(name)
    if kernel is not None and not operation.endswith(KERNELS):
        raise _taken(name, kernel.reference or f"a kernel of {kernel.modules[0]}")
    if (found := _operations.setdefault(name, operation)) != operation:
        raise _taken(name, found)


def register_implementation(operation: str, name: str, implementation: str) -> None:
    """Add an implementation to an operation by a ``"module:attribute"`` reference to its ``Implementation``.

    From the next call on it is tuned, raced, shown and served like ours. Installed packages do the same by an entry
    point ``"OPERATION.NAME" = "module:attribute"`` of the group ``autotune.implementations``.

    The operation may be registered later.

    Raises:
        UsageError: the reference is no ``"module:attribute"``.
        UnknownNameError: the name is taken by another reference.

    Example:
        >>> autotune.register_implementation("flash_attention", "naive", "my_package.space:IMPLEMENTATION")
    """
    require_form(implementation, f"implementation={name!r} of {operation}")
    if operation in _kernels and name == KERNEL and not implementation.endswith(KERNEL_END):
        raise _taken(f"{operation}/{name}", _kernels[operation].reference)
    is_new = (operation, name) not in _implementations
    if (found := _implementations.setdefault((operation, name), implementation)) != implementation:
        taken = f"implementation={name!r} of {operation} is registered already as {found}"
        raise UnknownNameError(f"{taken}; choose another name")
    if is_new:
        _tell_registered(operation)


def register_kernel(kernel: OwnKernel) -> None:
    """Add the operation and the implementation of a kernel under ``autotune.tuned``.

    It is served from now on and as long as it lives; other processes find it once a module has bound it to a name. One
    that is defined again, as in a notebook, replaces the one that had its operation before.

    Raises:
        UsageError: the operation's name cannot be that of a folder of tables.
        UnknownNameError: the name is taken by something else.
    """
    name, before = kernel.name, _kernels.get(kernel.name)
    if (reason := why_no_name(name)) is not None:
        raise UsageError(reason)
    if before is not None and not {*before.modules} & {*kernel.modules} and before.reference:
        raise _taken(name, before.reference)
    if (reference := _operations.get(name, KERNELS)) and not reference.endswith(KERNELS):
        raise _taken(name, reference)
    if (reference := _implementations.get((name, KERNEL), KERNEL_END)) and not reference.endswith(KERNEL_END):
        raise _taken(name, f"{name}/{KERNEL}, {reference}")
    _kernels[name] = kernel
    if forget(kernel.modules) or before is not None:
        forget_sources()
    _tell_registered(name)


def find_kernel(operation: str) -> OwnKernel | None:
    """Return the kernel that an operation stands for, None where it is no kernel's."""
    return _kernels.get(operation)


def _taken(operation: str, reference: str) -> UnknownNameError:
    return UnknownNameError(f"operation={operation!r} is registered already as {reference}; choose another name")


def _tell_registered(operation: str) -> None:
    for tell in on_registered:
        tell(operation)


def operation_names() -> list[str]:
    """Return the names of all registered operations, sorted."""
    return sorted({*_all_operations(), *_kernels})


def loadable_operations() -> list[Operation[Any]]:
    """Return the registered operations, ours before others.

    One whose reference cannot be loaded is left out with a warning: a broken package of somebody else's stops nobody.
    """
    found = []
    for name in dict.fromkeys([*_all_operations(), *_kernels]):
        try:
            found.append(get_operation(name))
        except UnknownNameError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    return found


def get_operation(name: str) -> Operation[Any]:
    """Return the operation of that name; UnknownNameError, with the registered ones, for another."""
    if (kernel := _own_kernel(name)) is not None:
        return kernel.operation
    found = load(reference := operation_reference(name))
    if not isinstance(found, Operation) or (found.name != name and reference.endswith(KERNELS)):
        is_what = found.name if isinstance(found, Operation) else found
        raise UnknownNameError(f"operation={name!r}: {reference} is {is_what!r}; expected an Operation of that name")
    return found


def implementation_names(operation: str) -> list[str]:
    """Return the names of an operation's implementations, in the order of registration."""
    own = [KERNEL] if operation in _kernels else []
    return list(dict.fromkeys([*own, *(name for of, name in _all_implementations() if of == operation)]))


def get_implementation(operation: str, name: str) -> Implementation[Any]:
    """Return an implementation by its operation's name and its own; UnknownNameError, with all names, for another."""
    if name == KERNEL and (kernel := _own_kernel(operation)) is not None:
        return kernel.implementation
    reference = implementation_reference(operation, name)
    found = load(reference)
    if not isinstance(found, Implementation) or (found.operation, found.name) != (operation, name):
        wrong = f"implementation={name!r} of {operation}: {reference} is {getattr(found, 'title', found)!r}"
        raise UnknownNameError(f"{wrong}; expected an Implementation of that operation and name")
    return found


def implementations_of(operation: str) -> list[Implementation[Any]]:
    """Return all implementations of an operation: ours first, each in the order of registration.

    One whose reference cannot be loaded is left out with a warning: a broken package of somebody else's stops nobody.
    """
    found = []
    for name in implementation_names(operation):
        try:
            found.append(get_implementation(operation, name))
        except UnknownNameError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    return sorted(found, key=lambda implementation: not implementation.is_ours)


def our_implementations(operation: str) -> list[Implementation[Any]]:
    """Return the implementations of an operation that are not foreign, in the order of registration.

    Raises:
        UnknownNameError: there is none; the message lists the foreign ones, which are tuned by name.
    """
    found = [each for each in implementations_of(operation) if each.is_ours]
    if not found:
        names = list_names(operation)
        raise UnknownNameError(f"operation={operation!r} has no implementation of ours; to be named: {names}")
    return found


def load_definition(operation: str) -> Definition:
    """Return the definition of an operation; imports torch."""
    return _loaded(get_operation(operation).definition)  # type: ignore[no-any-return]


def load_kernel(operation: str, implementation: str) -> Kernel:
    """Return the kernel of an implementation; imports torch and triton."""
    return _loaded(get_implementation(operation, implementation).kernel)  # type: ignore[no-any-return]


def _loaded(found: Any) -> Any:
    return instance(load(found)) if isinstance(found, str) else found


def load_baselines(operation: str) -> Sequence[Baseline]:
    """Return what an operation is compared with, the usual ones first; imports none of their libraries."""
    reference = get_operation(operation).baselines
    return load(reference) if reference else ()


def operation_reference(name: str) -> str:
    """Return the reference of an operation, for another process to register.

    Raises:
        UnknownNameError: no operation has that name.
        UsageError: it is a kernel that no other process can find.
    """
    _require_known(name)
    kernel = _kernels.get(name)
    return _all_operations()[name] if kernel is None else f"{_require_reference(kernel)}{KERNELS}"


def _require_known(name: str) -> None:
    require_text("operation", name, "flash_attention")
    if name not in (names := operation_names()):
        others = "autotune.register, on the command line --import or --kernel, adds others"
        raise UnknownNameError(f"operation={name!r} is unknown; registered: {', '.join(names)}; {others}")


def _require_reference(kernel: OwnKernel) -> str:
    """Return the place of a kernel, ``"module:name"``."""
    if not (reference := kernel.reference):
        expected = "by which other processes find it; bind it to one at the top of a module"
        raise UsageError(f"operation={kernel.name!r}: no module has a name for its kernel, {expected}")
    require_form(reference, f"operation={kernel.name!r}")
    return reference


def _own_kernel(operation: str) -> OwnKernel | None:
    """Return the kernel that an operation stands for, imported where only its place is known; None for none."""
    require_text("operation", operation, "flash_attention")
    if (kernel := _kernels.get(operation)) is not None:
        return kernel
    reference = _operations.get(operation) or dict(installed(OPERATION_ENTRY_POINTS)).get(operation, "")
    if reference.endswith(KERNELS):
        load(reference)
    return _kernels.get(operation)


def registering_module(operation: str) -> str:
    """Return the module whose import registers an operation; "" for ours, and for those of installed packages."""
    module = _registering.get(operation, "")
    return "" if module == "__main__" else module


def implementation_reference(operation: str, name: str) -> str:
    """Return the reference of an implementation, for another process to register."""
    _require_known(operation)
    require_text("implementation", name, "triton")
    if name == KERNEL and operation in _kernels:
        return f"{_require_reference(_kernels[operation])}{KERNEL_END}"
    known = _all_implementations()
    if (operation, name) not in known:
        raise UnknownNameError(
            f"implementation={name!r} of {operation} is unknown; registered: {list_names(operation)}"
        )
    return known[operation, name]


def list_names(operation: str) -> str:
    """Return in a line the names of an operation's implementations, and those that no operation here has."""
    strays = "".join(f"; {each} is registered too, but no operation of that name" for each in stray_implementations())
    return f"{', '.join(implementation_names(operation)) or 'none'}{strays}"


def stray_implementations() -> list[str]:
    """Return the titles of implementations whose operation is not registered: misspelt, or yet to come."""
    known = {*_all_operations(), *_kernels}
    return [f"{operation}/{name}" for operation, name in _all_implementations() if operation not in known]


def broken_registrations() -> list[str]:
    """Return a line for each operation and implementation that cannot be loaded, or whose name is not allowed."""
    known = _all_operations()
    names = (name for name, _ in installed(OPERATION_ENTRY_POINTS))
    refused = [reason for name in names if (reason := why_no_name(name)) is not None]
    asked: list[Callable[[], object]] = [partial(get_operation, name) for name in known]
    asked += [partial(get_implementation, *owner) for owner in _all_implementations() if owner[0] in known]
    return [*refused, *filter(None, map(_problem_of, asked))]


def _problem_of(load: Callable[[], object]) -> str:
    try:
        load()
    except (AutotuneError, OSError) as error:
        return str(error)
    return ""


def _all_operations() -> dict[str, str]:
    """Return references by name: registered ones first, then those of installed packages whose names are allowed."""
    found = dict(_operations)
    for name, reference in installed(OPERATION_ENTRY_POINTS):
        if why_no_name(name) is None:
            found.setdefault(name, reference)
    return found


def _all_implementations() -> dict[tuple[str, str], str]:
    found = dict(_implementations)
    for name, reference in installed(IMPLEMENTATION_ENTRY_POINTS):
        operation, _, implementation = name.partition(".")
        found.setdefault((operation, implementation), reference)
    return found


def table_packages() -> tuple[tuple[str, str], ...]:
    """Return the name and the dotted place of each folder of tables that installed packages bring."""
    return installed(TABLE_ENTRY_POINTS)
