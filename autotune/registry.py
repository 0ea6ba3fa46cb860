"""Names of operations and implementations: lazy ``"module:attribute"`` references, and kernels under a decorator."""

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from autotune.errors import AutotuneError, UnknownNameError, UsageError, require_text
from autotune.implementation import Implementation, Kernel, forget_sources
from autotune.operation import FOLDER_NAMES, Baseline, Definition, Operation, why_no_name
from autotune.ours import IMPLEMENTATIONS, OPERATIONS
from autotune.own_kernels import (
    IMPLEMENTATION_END,
    OPERATION_END,
    OWN_IMPLEMENTATION,
    OwnKernel,
    OwnKernels,
    is_of,
    may_replace,
    place_of,
    require_reference,
)
from autotune.references import (
    IMPLEMENTATION_ENTRY_POINTS,
    OPERATION_ENTRY_POINTS,
    TABLE_ENTRY_POINTS,
    installed,
    instance,
    load,
    module_name,
    require_form,
    resolve,
)

MadeT = TypeVar("MadeT")

_operations: dict[str, str] = dict(OPERATIONS)
_implementations: dict[tuple[str, str], str] = dict(IMPLEMENTATIONS)
_registering: Final[dict[str, str]] = {}  # modules that call ``register``, by operation
_kernels = OwnKernels()  # under ``autotune.tuned``

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
    if (kernel := _kernels.find(name)) is not None and not is_of(operation, kernel):
        raise _taken(name, place_of(kernel))
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
    if name in FOLDER_NAMES:
        taken = ", ".join(sorted(FOLDER_NAMES))
        raise UsageError(f"implementation={name!r} of {operation} is not allowed; folders of tables are {taken}")
    kernel = _kernels.find(operation)
    if kernel is not None and name == OWN_IMPLEMENTATION and not implementation.endswith(IMPLEMENTATION_END):
        raise _taken(f"{operation}/{name}", place_of(kernel))
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
    name, before = kernel.name, _kernels.find(kernel.name)
    if (reason := why_no_name(name)) is not None:
        raise UsageError(reason)
    if before is not None and not may_replace(kernel, before):
        raise _taken(name, place_of(before))
    if (reference := _operations.get(name)) is not None and not is_of(reference, kernel):
        raise _taken(name, reference)
    implementation = _implementations.get((name, OWN_IMPLEMENTATION))
    if implementation is not None and not implementation.endswith(IMPLEMENTATION_END):
        raise _taken(f"{name}/{OWN_IMPLEMENTATION}", implementation)
    if _kernels.put(kernel):
        forget_sources()
    _tell_registered(name)


def find_kernel(operation: str) -> OwnKernel | None:
    """Return the kernel that an operation stands for, None where it is no kernel's."""
    return _kernels.find(operation)


def _taken(operation: str, reference: str) -> UnknownNameError:
    return UnknownNameError(f"operation={operation!r} is registered already as {reference}; choose another name")


def _tell_registered(operation: str) -> None:
    for tell in on_registered:
        tell(operation)


def operation_names() -> list[str]:
    """Return the names of all registered operations, sorted."""
    return sorted(_known_names())


def loadable_operations() -> list[Operation[Any]]:
    """Return the registered operations, ours before others.

    One whose reference cannot be loaded is left out with a warning: a broken package of somebody else's stops nobody.
    """
    found = []
    for name in _known_names():
        try:
            found.append(get_operation(name))
        except UnknownNameError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    return found


def get_operation(name: str) -> Operation[Any]:
    """Return the operation of that name; UnknownNameError, with the registered ones, for another."""
    if (kernel := _own_kernel(name)) is not None:
        return _made(name, lambda: kernel.operation)
    found = load(reference := operation_reference(name))
    if not isinstance(found, Operation) or (found.name != name and reference.endswith(OPERATION_END)):
        is_what = found.name if isinstance(found, Operation) else found
        raise UnknownNameError(f"operation={name!r}: {reference} is {is_what!r}; expected an Operation of that name")
    return found


def implementation_names(operation: str) -> list[str]:
    """Return the names of an operation's implementations, in the order of registration."""
    own = [] if _kernels.find(operation) is None else [OWN_IMPLEMENTATION]
    return list(dict.fromkeys([*own, *(name for of, name in _all_implementations() if of == operation)]))


def get_implementation(operation: str, name: str) -> Implementation[Any]:
    """Return an implementation by its operation's name and its own; UnknownNameError, with all names, for another."""
    if name == OWN_IMPLEMENTATION and (kernel := _own_kernel(operation)) is not None:
        return _made(operation, lambda: kernel.implementation)
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
    return _object(get_operation(operation).definition)  # type: ignore[no-any-return]


def load_kernel(operation: str, implementation: str) -> Kernel:
    """Return the kernel of an implementation; imports torch and triton."""
    return _object(get_implementation(operation, implementation).kernel)  # type: ignore[no-any-return]


def _object(found: Any) -> Any:
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
    kernel = _kernels.find(name)
    if kernel is not None:
        return f"{require_reference(kernel)}{OPERATION_END}"
    _require_known(name)
    return _all_operations()[name]


def _require_known(name: str) -> None:
    require_text("operation", name, "flash_attention")
    if name not in (names := operation_names()):
        others = "autotune.register, on the command line --import or --kernel, adds others"
        raise UnknownNameError(f"operation={name!r} is unknown; registered: {', '.join(names)}; {others}")


def _own_kernel(operation: str) -> OwnKernel | None:
    """Return the kernel that an operation stands for, imported where only its place is known; None for none."""
    require_text("operation", operation, "flash_attention")
    if (kernel := _kernels.find(operation)) is not None:
        return kernel
    reference = _operations.get(operation) or _all_operations().get(operation, "")
    if reference.endswith(OPERATION_END):
        resolve(reference)
    return _kernels.find(operation)


def _made(operation: str, make: Callable[[], MadeT]) -> MadeT:
    """Make what a kernel stands for, at first; UnknownNameError, as of a reference, where its arguments do not do."""
    try:
        return make()
    except AutotuneError as error:
        raise UnknownNameError(f"operation={operation!r} cannot be loaded: {error}") from error


def registering_module(operation: str) -> str:
    """Return the module whose import registers an operation; "" for ours, and for those of installed packages."""
    module = _registering.get(operation, "")
    return "" if module == "__main__" else module


def implementation_reference(operation: str, name: str) -> str:
    """Return the reference of an implementation, for another process to register."""
    require_implementation(operation, name)
    if name == OWN_IMPLEMENTATION and (kernel := _kernels.find(operation)) is not None:
        return f"{require_reference(kernel)}{IMPLEMENTATION_END}"
    return _all_implementations()[operation, name]


def require_implementation(operation: str, name: str) -> None:
    """Raise UnknownNameError unless an operation has an implementation of that name."""
    _require_known(operation)
    require_text("implementation", name, "triton")
    if name not in implementation_names(operation):
        raise UnknownNameError(
            f"implementation={name!r} of {operation} is unknown; registered: {list_names(operation)}"
        )


def list_names(operation: str) -> str:
    """Return in a line the names of an operation's implementations, and those that no operation here has."""
    strays = "".join(f"; {each} is registered too, but no operation of that name" for each in stray_implementations())
    return f"{', '.join(implementation_names(operation)) or 'none'}{strays}"


def stray_implementations() -> list[str]:
    """Return the titles of implementations whose operation is not registered: misspelt, or yet to come."""
    known = _known_names()
    return [f"{operation}/{name}" for operation, name in _all_implementations() if operation not in known]


def broken_registrations() -> list[str]:
    """Return a line for each operation and implementation that cannot be loaded, or whose name is not allowed."""
    known = _known_names()
    names = (name for name, _ in installed(OPERATION_ENTRY_POINTS))
    refused = [reason for name in names if (reason := why_no_name(name)) is not None]
    asked: list[Callable[[], object]] = [partial(get_operation, name) for name in known]
    owners = dict.fromkeys([*_all_implementations(), *((name, OWN_IMPLEMENTATION) for name in _kernels.names())])
    asked += [partial(get_implementation, *owner) for owner in owners if owner[0] in known]
    return [*refused, *filter(None, map(_problem_of, asked))]


def _problem_of(load: Callable[[], object]) -> str:
    try:
        load()
    except (AutotuneError, OSError) as error:
        return str(error)
    return ""


def _known_names() -> list[str]:
    """Return the names of all operations: ours, registered ones, those of packages, and kernels'."""
    return list(dict.fromkeys([*_all_operations(), *_kernels.names()]))


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
