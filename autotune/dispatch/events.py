"""Events of serving, each logged by ``logging.getLogger("autotune")`` and counted for ``stats()``: picks, misses,
compiles, refusals and declines; and the seal, after which compiles and misses are errors.

An event is noted where it happens once: at a pick, at a compile, when a config is refused, at the first call of a kind
that a candidate declines. A call of a kernel that is picked and compiled notes nothing.
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

from autotune.device import Device
from autotune.errors import SealedError, UsageError
from autotune.process_lock import ProcessLock
from autotune.shape import Shape
from autotune.trial import Candidate
from autotune.tuning_command import tuning_command

LOGGER: Final = logging.getLogger("autotune")
LOGGER.addHandler(logging.NullHandler())
REMEMBERED: Final = 65536  # picks, some 100 bytes each; a process that makes more counts and logs some of them again

OnLate = Literal["error", "count"]
ON_LATE: Final = get_args(OnLate)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of what this process was served since it began; ``stats()`` returns them.

    Attributes:
        picks: by rung, how many kernels were picked; a shape counts once on a device, and again where another candidate
            or another rung is served after ``reload()``.
        misses: the operations and shapes for which no row was found, so that the default is served on the GPU here, in
            the order in which they were first missed; ``autotune.tune(stats().misses)`` tunes them. What is asked of a
            device by its name serves no call here and is none.
        refusals: the candidates that this process's toolchain refused, each of which gave way to the next.
        declines: the kinds of calls that a candidate could not take, as by their strides, so that the next one does.
        compiles: the binaries that were compiled, or loaded from Triton's cache; of a kernel that another library
            compiles, its first call.
        compile_seconds: how long they took, together.
        late_compiles: those of the compiles that came after ``seal(late="count")`` without ``warm``.
        late_misses: those of the misses that came after it.
    """

    picks: Mapping[str, int]
    misses: tuple[tuple[str, Shape], ...]
    refusals: int
    declines: int
    compiles: int
    compile_seconds: float
    late_compiles: int
    late_misses: int


class Pick(NamedTuple):
    """A candidate that is served for a shape on a device, from one rung of the ladder.

    ``is_miss``: it is the default, and for the GPU here.
    """

    operation: str
    shape: Shape
    device: Device
    candidate: Candidate
    rung: str
    is_miss: bool


class _Counts:
    """Counts of this process; every access holds the lock."""

    def __init__(self) -> None:
        self.picks: Counter[str] = Counter()
        self.noted: dict[Pick, None] = {}
        self.picked: dict[tuple[str, Shape, Device], None] = {}  # on any rung; none of these is missed late
        self.misses: dict[tuple[str, Shape], None] = {}
        self.refusals = self.declines = self.compiles = self.late_compiles = self.late_misses = 0
        self.compile_seconds = 0.0
        self.seal: OnLate | None = None

    def remember(self, problem: tuple[str, Shape, Device], *, is_ahead: bool) -> None:
        """Keep what was picked: the latest before the seal; after it all of these, and more as far as there is room."""
        if problem in self.picked:
            return
        if len(self.picked) >= REMEMBERED and not is_ahead:
            if self.seal is not None:
                return
            del self.picked[next(iter(self.picked))]
        self.picked[problem] = None


_counts: Final = _Counts()
_is_ahead: Final = ContextVar("is_ahead", default=False)
_lock: Final = ProcessLock()


def stats() -> Stats:
    """Count what this process was served: picks by rung, misses, refusals, compiles, and what came after ``seal()``.

    Example:
        >>> autotune.stats().picks
        {'exact': 3, 'default': 1}
    """
    with _lock:
        return Stats(
            picks=dict(_counts.picks),
            misses=tuple(_counts.misses),
            refusals=_counts.refusals,
            declines=_counts.declines,
            compiles=_counts.compiles,
            compile_seconds=_counts.compile_seconds,
            late_compiles=_counts.late_compiles,
            late_misses=_counts.late_misses,
        )


def seal(*, late: OnLate = "error") -> None:
    """Allow no compile and no miss from now on, in this process, but those of ``warm``; until ``unseal()``.

    Args:
        late: ``"error"`` raises ``SealedError`` for the call that would compile, or be served a default for a shape
            that was not picked before; ``"count"`` lets it pass, logs a warning and counts it in ``stats()``.

    A shape that was picked before is served whatever ``reload()`` no longer finds, and so is what is asked of a device
    by its name. Compiles are seen by ``triton.knobs.runtime``'s hooks: whoever sets these after the seal, and does not
    call those that were there, ends it for compiles.

    Raises:
        UsageError: another value of ``late``.

    Example:
        >>> autotune.warm(shapes)
        >>> autotune.seal()
    """
    if late not in ON_LATE:
        raise UsageError(f"late={late!r} is not allowed; expected {' or '.join(map(repr, ON_LATE))}")
    with _lock:
        _counts.seal = late
    if "autotune.kernels.compiles" in sys.modules:
        from autotune.kernels.compiles import watch_again

        watch_again(begin_compile, note_compile)


def unseal() -> None:
    """Allow compiles and misses again.

    Example:
        >>> autotune.unseal()
    """
    with _lock:
        _counts.seal = None


@contextmanager
def ahead() -> Iterator[None]:
    """Let picks pass that the seal would not: those that are made before they are needed."""
    token = _is_ahead.set(True)
    try:
        yield
    finally:
        _is_ahead.reset(token)


def note_pick(pick: Pick, reason: str, expectation: object) -> None:
    """Log and count a pick, once, and log what is expected of it; raise SealedError for a miss that comes too late."""
    with _lock:
        if pick in _counts.noted:
            return
        asked, is_ahead = (pick.operation, pick.shape, pick.device), _is_ahead.get()
        is_late = pick.is_miss and _counts.seal is not None and not is_ahead and asked not in _counts.picked
        if not (is_late and _counts.seal == "error"):
            if len(_counts.noted) >= REMEMBERED:
                _counts.noted.clear()
            _counts.noted[pick] = None
            _counts.remember(asked, is_ahead=is_ahead)
            _counts.picks[pick.rung] += 1
            if pick.is_miss and len(_counts.misses) < REMEMBERED:
                _counts.misses[pick.operation, pick.shape] = None
            _counts.late_misses += is_late
        seal = _counts.seal
    problem = f"{pick.operation}: {pick.shape} on {pick.device.name}"
    if is_late and seal == "error":
        raise SealedError(f"{problem} is missed after seal(): {reason}; warm it, or tune it before")
    level = logging.WARNING if is_late else logging.INFO
    if LOGGER.isEnabledFor(level):
        hint = f"; `{tuning_command(pick.operation, pick.shape)}` tunes it" if pick.is_miss else ""
        after = "missed after seal(): " if is_late else ""
        LOGGER.log(
            level, "%s: %s%s, %s: %s; %s%s", problem, after, pick.candidate, pick.rung, reason, expectation, hint
        )


def note_refusal(operation: str, refused: Candidate, used: Candidate, error: Exception) -> None:
    """Log and count a candidate that the toolchain refused."""
    with _lock:
        _counts.refusals += 1
    LOGGER.warning("%s: %s is refused (%s); using %s", operation, refused, type(error).__name__, used)


def note_decline(operation: str, shape: Shape, reason: str) -> None:
    """Log and count a kind of calls that goes to the next candidate."""
    with _lock:
        _counts.declines += 1
    LOGGER.info("%s: %s: %s", operation, shape, reason)


def begin_compile(kernel: str) -> None:
    """Raise SealedError for a compile that comes too late."""
    if _counts.seal == "error":
        raise SealedError(f"{kernel} would compile after seal(): warm the shape, its dtypes and every output before")


def note_compile(kernel: str, seconds: float, is_ahead: bool = False) -> None:
    """Log and count a compile; ``is_ahead``: it was asked for, by ``warm`` or a ``warmup``, and is never late."""
    with _lock:
        is_late = not is_ahead and _counts.seal is not None
        _counts.compiles += 1
        _counts.compile_seconds += seconds
        _counts.late_compiles += is_late
    after = " after seal()" if is_late else ""
    LOGGER.log(logging.WARNING if is_late else logging.INFO, "%s compiled in %.2f s%s", kernel, seconds, after)


def watch_compiles(package: str) -> None:
    """Note the compiles of a package of Triton's kernels from now on, and hold the seal against them."""
    if "triton" in sys.modules:  # which a kernel of Triton has loaded
        from autotune.kernels.compiles import watch

        watch(package, begin_compile, note_compile)


def noting_first_call(kernel: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that notes the time of a foreign kernel's first call, in which its library compiles it."""

    def first(*tensors: Any, **options: Any) -> Any:
        started = time.perf_counter()
        result = call(*tensors, **options)
        note_compile(kernel, time.perf_counter() - started)
        return result

    return first
