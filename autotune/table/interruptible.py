"""Calls into libraries that do not return for Ctrl-C or SIGTERM, ended for the user by both."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def interruptible(act: Callable[[], T]) -> T:
    """Return what a call returns, or raise its error; a signal's exception comes at once, and leaves the call behind.

    Python hears of signals in its main thread alone, once that runs Python again. So the main thread waits here for
    another one, a daemon, which no exit waits for; elsewhere the call is made in place.
    """
    if threading.current_thread() is not threading.main_thread():
        return act()
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(act())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found.result()
