"""A child process that speaks JSON lines: started, asked, killed and replaced by its parent."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any, Final

from autotune.executor.messages import send

GRACE_SECONDS: Final = 2.0  # between closing a child's input and killing it


class ChildDiedError(RuntimeError):
    """A child ended without answering; the message carries its exit status and its last words."""


class Child:
    """``python -m module arguments``, in a session of its own so that Ctrl-C reaches the parent alone."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._buffer = b""
        self._killed = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": _search_path(), **(environment or {})},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """The descriptor to wait on for messages."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue one message.

        Raises:
            ChildDiedError: the child is gone.
        """
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, message)  # type: ignore[arg-type]
        except (OSError, ValueError):  # ValueError: it was killed, its pipes are closed
            raise ChildDiedError(self.last_words()) from None

    @property
    def has_message(self) -> bool:
        """Whether a message was read already and waits to be received."""
        return b"\n" in self._buffer

    def receive(self, timeout: float) -> dict[str, Any] | None:
        """The next message, or None when none came in that many seconds.

        Raises:
            ChildDiedError: the child ended instead.
        """
        assert self._process.stdout is not None
        if self._process.stdout.closed:  # killed
            raise ChildDiedError(self.last_words())
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno(), selectors.EVENT_READ)
            while not self.has_message:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                chunk = os.read(self.fileno(), 1 << 16)
                if not chunk:
                    raise ChildDiedError(self.last_words())
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def last_words(self) -> str:
        """How the child ended and the last line it printed."""
        try:
            code: object = self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            code = "none yet"
        if self._log.closed:
            return f"exit status {code}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"exit status {code}" + (f": {lines[-1][:500]}" if lines else "")

    def kill(self) -> None:
        """End the child and its whole process group at once."""
        if self._killed:
            return  # a reaped process's number may be somebody else's by now
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._close_pipes()

    def close(self) -> None:
        """Let the child finish by ending its input; kill it if it does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(GRACE_SECONDS)
        self.kill()

    def _close_pipes(self) -> None:
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):  # an unread message of a dead child
                    stream.close()


def _search_path() -> str:
    """This process's import path, so that a child finds what its parent found."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)
