"""Results that one thread reads while others wait for it."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, TypeVar, TypeVarTuple

from autotune.process_lock import ProcessLock

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class ReadOnce(Generic[*Arguments, Result]):
    """A function whose results are kept, as by ``functools.cache``; of threads that ask at once, one alone calls it.

    After a reload all threads of a server want the same tables: each would read them, and hold up the others.

    Example:
        >>> @ReadOnce
        ... def length(text: str) -> int:
        ...     return len(text)
        >>> length("table")
        5
    """

    def __init__(self, function: Callable[[*Arguments], Result]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._results: dict[tuple[*Arguments], tuple[Result]] = {}
        self._reading = ProcessLock()

    def __call__(self, *arguments: *Arguments) -> Result:
        """Return the result of arguments, which must be hashable; an error is raised, and not kept."""
        if (kept := self._results.get(arguments)) is None:
            with self._reading:
                if (kept := self._results.get(arguments)) is None:
                    kept = self._results[arguments] = (self._function(*arguments),)
        return kept[0]

    def forget(self) -> None:
        """Call the function anew when it is asked next."""
        self._results.clear()
