"""A lock of the threads of one process, which a fork frees."""

import os
import threading


class ProcessLock:
    """A lock that nobody holds in a forked child: a thread of the parent that held it would never free it there.

    The thread that holds it may take it again, as a handler of a warning does that asks for a kernel.

    Example:
        >>> lock = ProcessLock()
        >>> with lock:
        ...     pass
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()
