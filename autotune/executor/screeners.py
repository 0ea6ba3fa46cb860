"""The screeners of an executor: its own, and those of further GPUs that are lent while it screens a problem."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from autotune.errors import AutotuneError
from autotune.executor.screener import DROP_SECONDS, Screener
from autotune.operation import Operation
from autotune.shape import Shape


class Screeners:
    """Those that screen now; the thread that searches has them, and any thread may lend one.

    Attributes:
        own: the one that stays.
    """

    def __init__(self, own: Screener) -> None:
        self.own = own
        self._screening = [own]
        self._lending = threading.Lock()  # of the next two: others lend
        self._lent: list[Screener] = []  # not yet among those that screen
        self._problem: tuple[Operation[Any], Shape] | None = None  # while it is screened

    def __iter__(self) -> Iterator[Screener]:
        return iter(tuple(self._screening))

    @property
    def lent_count(self) -> int:
        """The number of those that are lent."""
        return len(self._lent) + len(self._screening) - 1

    def accept(self, operation: Operation[Any], shape: Shape) -> None:
        """Take from now on what is lent for a problem, which its own worker has opened."""
        with self._lending:
            self._problem = operation, shape

    def lend(self, screener: Screener, on_return: Callable[[AutotuneError | None], None]) -> bool:
        """Let a screener of the same kind screen too, until it is returned; False if nothing is screened now.

        May be called from any thread. ``on_return`` is called in the thread that searches, with the error where the
        screener failed.
        """
        with self._lending:
            if self._problem is None:
                return False
            screener.on_return = on_return
            self._lent.append(screener)
            return True

    def welcome(self) -> None:
        """Let those that were lent open the problem."""
        with self._lending:
            arrived, self._lent = self._lent, []
            problem = self._problem
        for screener in arrived:
            assert problem is not None
            screener.workers.open(*problem)
            self._screening.append(screener)

    def give_back(self, screener: Screener, error: AutotuneError | None) -> None:
        """Return one that was lent, with the error if it failed."""
        if screener in self._screening:
            self._screening.remove(screener)
        if screener.on_return is not None:
            screener.on_return(error)

    def give_back_lent(self) -> None:
        """Return every one that was lent, and take no more until the next problem is opened.

        What they screen is left a moment to end, all of it together, as they screen side by side.
        """
        until = time.monotonic() + DROP_SECONDS
        with self._lending:
            self._problem = None
            waiting, self._lent = self._lent, []
        with contextlib.ExitStack() as stack:  # whatever fails, each comes back to the thread that waits for it
            for screener in waiting:
                stack.callback(self.give_back, screener, None)
            for screener in self._screening[1:]:
                stack.callback(self.give_back, screener, None)
                stack.callback(screener.drop, until)
