"""``--kernel``: an operation by the kernel of the user's that it stands for, beside ``--operation``."""

import sys
from functools import reduce
from pathlib import Path
from typing import Any, Final

from autotune.console.command import Decorator, collected, import_from_here, option
from autotune.errors import AutotuneError, UsageError, suggestion
from autotune.operation import Operation
from autotune.own_kernels import OPERATION_END
from autotune.references import is_reference, require_form, resolve
from autotune.registry import find_kernel

EXPECTED: Final = "expected a kernel under @autotune.tuned(...), such as my_package.kernels:rmsnorm"


def operation_options(*, default: str | None = None, default_text: str = "") -> Decorator:
    """Add ``--operation`` and ``--kernel`` to a command, which takes the name of the one that was given."""

    def choose(operation: str | None, kernel: str | None) -> str | None:
        return named_operation(operation, kernel) or default

    text = default_text or default or ""
    kernel = "A kernel of your own under autotune.tuned, my_package.kernels:rmsnorm, instead of --operation."
    options = {
        "operation": option("--operation", help="What is computed.", default_text=text),
        "kernel": option("--kernel", metavar="MODULE:NAME", help=kernel),
    }
    return collected("operation", choose, options)


def named_operation(operation: str | None, kernel: str | None) -> str | None:
    """Return the operation's name; that of a kernel's is registered by importing its module."""
    if kernel is None:
        return operation
    if operation is not None:
        raise UsageError(f"--kernel={kernel!r} and --operation exclude each other; leave one out")
    import_from_here()
    try:
        require_form(f"{kernel}{OPERATION_END}", "kernel")
        found = resolve(f"{kernel}{OPERATION_END}")
    except UsageError as error:
        raise type(error)(f"--kernel={kernel!r} {_why_not(kernel, error.__cause__)}") from error
    if not isinstance(found, Operation):
        raise UsageError(f"--kernel={kernel!r} has no operation{_kernels_text(kernel)}; {EXPECTED}")
    if (owner := find_kernel(found.name)) is not None and owner.operation is not found:
        now = owner.reference or "another kernel"
        raise UsageError(f"--kernel={kernel!r}: {found.name} is the operation of {now} now; give one another name=")
    return found.name


def _why_not(kernel: str, cause: BaseException | None) -> str:
    """Return why a reference could not be loaded; without a cause it is none."""
    module, _, name = kernel.partition(":")
    if module.endswith(".py") and (cause is None or isinstance(cause, ModuleNotFoundError)):
        reference = f"{'.'.join(Path(module).with_suffix('').parts)}:{name.strip(':')}"
        found = reference if is_reference(reference) else "MODULE:NAME of one that can be imported from here"
        return f"names a file; expected its module, --kernel {found}"
    if cause is None:
        return f"is no reference; {EXPECTED}"
    if isinstance(cause, AutotuneError):  # which says itself what it expected
        return f"cannot be imported: {cause}{_kernels_text(kernel)}"
    if isinstance(cause, AttributeError) and module in sys.modules:
        there: Any = sys.modules[module]
        found = reduce(lambda owner, each: getattr(owner, each, None), name.split("."), there)
        known = found is not None
        what = (
            f"is no kernel under tuned{_other_decorator(found)}{_kernels_text(kernel)}"
            if known
            else f"is not there{_kernels_text(kernel)}"
        )
        return f"{what}; {EXPECTED}"
    return f"cannot be imported: {cause}{_kernels_text(kernel)}; {EXPECTED}"


def _other_decorator(found: object) -> str:
    """Return what is above a kernel of Triton's instead; "" for anything else."""
    kind = type(found)
    if not kind.__module__.startswith("triton."):
        return ""
    return ", but under triton.autotune alone" if kind.__name__ == "Autotuner" else ", but under triton.jit alone"


def _kernels_text(kernel: str) -> str:
    """Return the kernel that a name in a module is likely a misspelling of, else all of the module's; "" for none."""
    module, _, name = kernel.partition(":")
    there = vars(sys.modules[module]) if module in sys.modules else {}
    names = sorted(each for each, value in there.items() if isinstance(getattr(value, "operation", None), Operation))
    near = suggestion(name, names)
    return near or (f"; kernels there: {', '.join(names)}" if names else "")
