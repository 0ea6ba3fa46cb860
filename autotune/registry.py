"""Names of operations and implementations: lazy ``"module:attribute"`` references; the only file that names ours."""

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from autotune.errors import AutotuneError, UnknownNameError, UsageError, require_text
from autotune.implementation import Implementation, Kernel, forget_sources
from autotune.operation import Baseline, Definition, Operation, why_no_name
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
from autotune.unbound import Unbound

_operations: dict[str, str] = {
    "flash_attention": "autotune.search_spaces.flash_attention.operation:OPERATION",
    "flash_attention_varlen": "autotune.search_spaces.flash_attention_varlen.operation:OPERATION",
    "paged_decode": "autotune.search_spaces.paged_decode.operation:OPERATION",
    "paged_prefill": "autotune.search_spaces.paged_prefill.operation:OPERATION",
}
_implementations: dict[tuple[str, str], str] = {
    ("flash_attention", "triton"): "autotune.search_spaces.flash_attention.triton:IMPLEMENTATION",
    ("flash_attention", "gluon_hopper"): "autotune.search_spaces.flash_attention.gluon_hopper:IMPLEMENTATION",
    ("flash_attention", "gluon_hopper_fp8"): "autotune.search_spaces.flash_attention.gluon_hopper_fp8:IMPLEMENTATION",
    ("flash_attention", "triton_split_keys"): "autotune.search_spaces.flash_attention.triton_split_keys:IMPLEMENTATION",
    ("flash_attention", "triton_masked"): "autotune.search_spaces.flash_attention.triton_masked:IMPLEMENTATION",
    (
        "flash_attention",
        "triton_split_width",
    ): "autotune.search_spaces.flash_attention.triton_split_width:IMPLEMENTATION",
    (
        "flash_attention",
        "triton_split_values",
    ): "autotune.search_spaces.flash_attention.triton_split_values:IMPLEMENTATION",
    ("flash_attention", "flex"): "autotune.search_spaces.flash_attention.flex:IMPLEMENTATION",
    ("flash_attention_varlen", "triton"): "autotune.search_spaces.flash_attention_varlen.triton:IMPLEMENTATION",
    (
        "flash_attention_varlen",
        "gluon_hopper",
    ): "autotune.search_spaces.flash_attention_varlen.gluon_hopper:IMPLEMENTATION",
    ("paged_decode", "triton"): "autotune.search_spaces.paged_decode.triton:IMPLEMENTATION",
    (
        "paged_decode",
        "gluon_hopper_latent",
    ): "autotune.search_spaces.paged_decode.gluon_hopper_latent:IMPLEMENTATION",
    ("paged_decode", "triton_latent"): "autotune.search_spaces.paged_decode.triton_latent:IMPLEMENTATION",
    ("paged_prefill", "triton"): "autotune.search_spaces.paged_prefill.triton:IMPLEMENTATION",
}

_registering: Final[dict[str, str]] = {}  # modules that call ``register``, by operation
_unbound: Final[dict[str, Unbound]] = {}  # kernels that had no name yet when they were registered, by operation

KERNELS: Final = ".operation"  # ends the reference of an operation that is a kernel's under ``autotune.tuned``
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
    if (found := _references().setdefault(name, operation)) != operation:
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
    _references()
    is_new = (operation, name) not in _implementations
    if (found := _implementations.setdefault((operation, name), implementation)) != implementation:
        taken = f"implementation={name!r} of {operation} is registered already as {found}"
        raise UnknownNameError(f"{taken}; choose another name")
    if is_new:
        _tell_registered(operation)


def register_kernel(operation: str, kernel: Unbound) -> None:
    """Add the operation and the implementation of a kernel under ``autotune.tuned``, as soon as it has a name.

    A kernel that is defined again, as in a notebook, replaces the one that had its operation before.

    Raises:
        UsageError: the operation's name cannot be that of a folder of tables.
        UnknownNameError: the name is taken by something else.
    """
    if (reason := why_no_name(operation)) is not None:
        raise UsageError(reason)
    before = _references().get(operation)
    if before is not None and before.partition(":")[0] not in kernel.modules:
        raise _taken(operation, before)
    _unbound[operation] = kernel
    if before is None or forget(before.removesuffix(KERNELS)):
        forget_sources()
        _tell_registered(operation)


def _references() -> dict[str, str]:
    """Return the references of operations, those of kernels too whose modules have bound them to a name since."""
    for operation, kernel in list(_unbound.items()):
        if reference := kernel.find_reference():
            _operations[operation] = f"{reference}{KERNELS}"
            _implementations[operation, kernel.implementation] = f"{reference}.implementation"
            _unbound.pop(operation, None)
    return _operations


def _taken(operation: str, reference: str) -> UnknownNameError:
    return UnknownNameError(f"operation={operation!r} is registered already as {reference}; choose another name")


def _tell_registered(operation: str) -> None:
    for tell in on_registered:
        tell(operation)


def operation_names() -> list[str]:
    """Return the names of all registered operations, sorted."""
    return sorted(_all_operations())


def loadable_operations() -> list[Operation[Any]]:
    """Return the registered operations, ours before others.

    One whose reference cannot be loaded is left out with a warning: a broken package of somebody else's stops nobody.
    """
    found = []
    for name in _all_operations():
        try:
            found.append(get_operation(name))
        except UnknownNameError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    return found


def get_operation(name: str) -> Operation[Any]:
    """Return the operation of that name; UnknownNameError, with the registered ones, for another."""
    found = load(reference := operation_reference(name))
    if not isinstance(found, Operation):
        raise UnknownNameError(f"operation={name!r}: {reference} is {found!r}; expected an Operation")
    return found


def implementation_names(operation: str) -> list[str]:
    """Return the names of an operation's implementations, in the order of registration."""
    return [name for of, name in _all_implementations() if of == operation]


def get_implementation(operation: str, name: str) -> Implementation[Any]:
    """Return an implementation by its operation's name and its own; UnknownNameError, with all names, for another."""
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
    return instance(load(get_operation(operation).definition))  # type: ignore[no-any-return]


def load_kernel(operation: str, implementation: str) -> Kernel:
    """Return the kernel of an implementation; imports torch and triton."""
    return instance(load(get_implementation(operation, implementation).kernel))  # type: ignore[no-any-return]


def load_baselines(operation: str) -> Sequence[Baseline]:
    """Return what an operation is compared with, the usual ones first; imports none of their libraries."""
    reference = get_operation(operation).baselines
    return load(reference) if reference else ()


def operation_reference(name: str) -> str:
    """Return the reference of an operation, for another process to register."""
    require_text("operation", name, "flash_attention")
    known = _all_operations()
    if name not in known:
        names, others = (
            ", ".join(sorted(known)),
            "autotune.register, on the command line --import or --kernel, adds others",
        )
        raise UnknownNameError(f"operation={name!r} is unknown; registered: {names}; {others}")
    return known[name]


def decorated_kernel(operation: str) -> str:
    """Return the place of the kernel that an operation stands for, ``"module:name"``, or "" for one that is none."""
    reference = _references().get(operation, "")
    return reference.removesuffix(KERNELS) if reference.endswith(KERNELS) else ""


def registering_module(operation: str) -> str:
    """Return the module whose import registers an operation; "" for ours, and for those of installed packages."""
    module = _registering.get(operation, "")
    return "" if module == "__main__" else module


def implementation_reference(operation: str, name: str) -> str:
    """Return the reference of an implementation, for another process to register."""
    operation_reference(operation)
    require_text("implementation", name, "triton")
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
    known = _all_operations()
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
    found = dict(_references())
    for name, reference in installed(OPERATION_ENTRY_POINTS):
        if why_no_name(name) is None:
            found.setdefault(name, reference)
    return found


def _all_implementations() -> dict[tuple[str, str], str]:
    _references()
    found = dict(_implementations)
    for name, reference in installed(IMPLEMENTATION_ENTRY_POINTS):
        operation, _, implementation = name.partition(".")
        found.setdefault((operation, implementation), reference)
    return found


def table_packages() -> tuple[tuple[str, str], ...]:
    """Return the name and the dotted place of each folder of tables that installed packages bring."""
    return installed(TABLE_ENTRY_POINTS)
