"""An interruption of other threads: what waits for a child there raises KeyboardInterrupt, as Ctrl-C does."""

import os
import threading


class Interruption:
    """Once ``set``, whatever waits for a child that has it raises KeyboardInterrupt, in whichever thread.

    It has a ``fileno`` that is readable from then on, so that a selector waits for it beside what else it waits for.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._lock = threading.Lock()
        self.is_set = False

    def fileno(self) -> int:
        return self._read

    def set(self) -> None:
        with self._lock:
            if not self.is_set:
                self.is_set = True
                os.write(self._write, b"!")

    def check(self) -> None:
        """Raise KeyboardInterrupt if it is set."""
        if self.is_set:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Give up its pipe, once nothing waits; safe to call twice."""
        with self._lock:
            for end in (self._read, self._write):
                if end >= 0:
                    os.close(end)
            self._read = self._write = -1
            self.is_set = True
