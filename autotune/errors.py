"""Every exception that autotune raises on purpose, and texts and classes of those of others."""

import difflib
from collections.abc import Iterable
from typing import ClassVar, Final, Literal

from autotune.redaction import redacted

MESSAGE_LIMIT: Final = 500  # characters of somebody else's message


def printable(text: str) -> str:
    """Replace what is no visible character: a text of a table is shown in one line, and moves no cursor.

    Controls, escape sequences, line breaks and marks that turn the direction of writing become question marks.

    Example:
        >>> printable("winner\\x1b[2J")
        'winner?[2J'
    """
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)


def one_line(error: BaseException) -> str:
    """Return an exception of somebody else as a message: its type and text in one line, cut where it is long.

    Credentials in URIs are left out.

    Example:
        >>> one_line(RuntimeError("no\\nkernel"))
        'RuntimeError: no kernel'
    """
    return printable(redacted(" ".join(f"{type(error).__name__}: {error}".split())))[:MESSAGE_LIMIT]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return what an error adds to a name that is likely a misspelling of a known one, else "".

    Example:
        >>> suggestion("BLOK", ["BLOCK", "num_warps"])
        " (did you mean 'BLOCK'?)"
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def is_toolchain_refusal(error: BaseException) -> bool:
    """Return True if this toolchain refuses a config: the one rule for calls and for trials.

    Such an exception is of a class of Triton's, or of one derived from it, or names MLIR's pass manager. All others
    mean a wrong call, or a broken GPU. Implementations on other compilers raise ``triton.TritonError`` likewise.
    """
    if isinstance(error, AutotuneError):
        return False
    is_tritons = any(each.__module__.partition(".")[0] == "triton" for each in type(error).__mro__)
    return is_tritons or "passmanager" in str(error).lower()


class AutotuneError(Exception):
    """Root of every deliberate error of this package; credentials in URIs are left out of its message."""

    def __init__(self, *arguments: object) -> None:
        # Not by `super().__init__`, which Dynamo cannot trace: its own error would quote that and not this message.
        self.args = tuple([redacted(each) if isinstance(each, str) else each for each in arguments])


class UsageError(AutotuneError, ValueError):
    """The caller's mistake; the message names the argument, the value and what is allowed. Commands exit with 2."""


class InvalidShapeError(UsageError):
    """A field of a shape is out of range."""


class InvalidConfigError(UsageError):
    """A config is not a member of its space."""


class UnknownNameError(UsageError):
    """A name (operation, device, model, dtype) that is not registered."""


class InputMismatchError(UsageError):
    """Tensors do not fit each other, or the shape that the kernel was picked for."""


class NotDifferentiableError(UsageError):
    """An input requires gradients, and no backward kernel exists."""


class TableError(AutotuneError):
    """A table is damaged, foreign or cannot be written; the message names the file."""


class MissingDependencyError(AutotuneError):
    """A package, tool or device that this call needs is absent; the message says how to get it."""


class UnusableGpuError(MissingDependencyError):
    """A GPU cannot be opened, or its times cannot be trusted now; of several, the others do its work."""


class UnsupportedCallError(AutotuneError):
    """A candidate cannot compute one call's tensors or options, such as strides; the message says why.

    The next candidate that may be served takes that call, and those that are alike (``autotune.dispatch.TunedKernel``).
    """


class BaselineUnavailableError(UnsupportedCallError):
    """A baseline cannot do this problem, or not on this machine; the message says why."""


class NoTunedKernelError(AutotuneError):
    """No tuned row serves the shape, and the caller asked for an error instead of the default."""


class SealedError(AutotuneError):
    """After ``autotune.seal()`` a call would compile, or be served a default for a shape that nothing was tuned for."""


class OutOfPagesError(AutotuneError):
    """The pool of a paged cache has fewer free pages than a call needs; nothing was changed."""


class SearchError(AutotuneError):
    """A search ended without one valid config; the message counts the statuses."""


class LastingTableError(TableError):
    """No other try mends it: a file or bucket that is not there, a right that is missing."""


class MissingFileError(LastingTableError):
    """A file is not there, or not any more."""


class HostError(AutotuneError):
    """This host cannot go on with a task of a grid, as on a full disk; another one may. The message says why.

    Attributes:
        scope: what cannot go on: the ``host``, its tasks of this ``device`` kind, or one ``gpu`` of perhaps several.
    """

    scope: ClassVar[Literal["host", "device", "gpu"]] = "host"


class OtherDeviceError(HostError):
    """This host has another GPU than a task is for."""

    scope = "device"


class GpuFaultError(HostError):
    """The GPU that a task was given cannot be opened, or gives no verdict on any trial."""

    scope = "gpu"


class SupersededError(AutotuneError):
    """A later attempt owns a task of a grid: this one was taken for dead, and adds nothing more."""


def require_text(argument: str, value: object, example: str) -> None:
    """Raise UsageError unless a value is a text, which an argument that is a name must be."""
    if not isinstance(value, str):
        raise UsageError(f"{argument}={value!r} is of type {type(value).__name__}; expected a name such as {example!r}")
