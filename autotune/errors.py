"""Every exception that autotune raises on purpose.

::

    AutotuneError
    ├── UsageError (ValueError)          the caller's mistake: the command line exits with 2
    │   ├── InvalidShapeError            a field of a shape is out of range
    │   ├── InvalidConfigError           a config is not one of its space
    │   ├── UnknownNameError             an operation, device, model or dtype that does not exist
    │   ├── InputMismatchError           tensors do not fit the shape that a kernel was picked for
    │   └── NotDifferentiableError       an input requires gradients and there is no backward kernel
    ├── TableError                       a table is damaged, foreign or cannot be written
    ├── MissingDependencyError           a package, tool or device that this call needs is absent
    ├── BaselineUnavailableError         an implementation to compare with cannot do this problem, or not here
    ├── NoTunedKernelError               ``on_miss="error"`` and no tuned row serves the shape
    ├── OutOfPagesError                  a paged cache has too few free pages
    └── SearchError                      a search ended without one valid config
"""

from typing import Final

MESSAGE_LIMIT: Final = 500  # characters of somebody else's message


def one_line(error: Exception) -> str:
    """An exception of somebody else as a message: its type and text in one line, cut where it is long.

    Example:
        >>> one_line(RuntimeError("no\\nkernel"))
        'RuntimeError: no kernel'
    """
    return " ".join(f"{type(error).__name__}: {error}".split())[:MESSAGE_LIMIT]


class AutotuneError(Exception):
    """Root of every deliberate error of this package."""


class UsageError(AutotuneError, ValueError):
    """The call itself is wrong; its message names the argument, the value and what is allowed."""


class InvalidShapeError(UsageError):
    """A field of a shape is out of range."""


class InvalidConfigError(UsageError):
    """A config is not a member of its space."""


class UnknownNameError(UsageError):
    """A name (operation, device, model, dtype) that is not registered."""


class InputMismatchError(UsageError):
    """Tensors do not fit the shape that the kernel was picked for."""


class NotDifferentiableError(UsageError):
    """An input requires gradients, and no backward kernel exists."""


class TableError(AutotuneError):
    """A table is damaged, foreign or cannot be written; the message names the file."""


class MissingDependencyError(AutotuneError):
    """A package, tool or device that this call needs is absent; the message says how to get it."""


class BaselineUnavailableError(AutotuneError):
    """An implementation to compare with cannot do this problem, or not on this machine; the message says why."""


class NoTunedKernelError(AutotuneError):
    """No tuned row serves the shape, and the caller asked for an error instead of the default."""


class OutOfPagesError(AutotuneError):
    """The pool of a paged cache has fewer free pages than a call needs; nothing was changed."""


class SearchError(AutotuneError):
    """A search ended without one valid config; the message counts the statuses."""
