"""A child process that speaks JSON lines: started, asked, killed and replaced by its parent, and ended with it.

Run by ``Child``: ``python -m autotune.executor.child PARENT MODULE ARGUMENTS`` ties itself to the life of the process
of that number, then runs the module, whose imports may take seconds.
"""

import contextlib
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any, Final

from autotune.executor.messages import die_with_parent, send

GRACE_SECONDS: Final = 2.0  # between closing a child's input and killing it
POLL_SECONDS: Final = 0.005


class ChildDiedError(RuntimeError):
    """A child ended without answering; the message carries its exit status and its last words."""


class Child:
    """``python -m module arguments``, in a session of its own so that Ctrl-C reaches the parent alone."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(os.getpid()), module, *arguments],
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
        found = self._await_end(GRACE_SECONDS)
        code = "none yet" if found is None else found
        if self._log.closed:
            return f"exit status {code}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"exit status {code}" + (f": {lines[-1][:500]}" if lines else "")

    def kill(self) -> None:
        """End the child and its whole process group at once."""
        if self._process.returncode is None:  # a reaped process's number may be somebody else's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close_pipes()

    def close(self) -> None:
        """Let the child finish by ending its input; kill it if it does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._await_end(GRACE_SECONDS)
        self.kill()

    def _await_end(self, seconds: float) -> int | None:
        """The exit status of a child that ended, or None after that many seconds.

        It is left to ``kill`` to reap it, after its group: its number is its own until then.
        """
        deadline = time.monotonic() + seconds
        while self._process.returncode is None:
            try:
                end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:  # reaped by another, as where this process ignores SIGCHLD
                return self._process.wait()
            if end is not None:
                return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_SECONDS)
        return self._process.returncode

    def _close_pipes(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):  # an unread message of a dead child
                    stream.close()


def _search_path() -> str:
    """This process's import path, so that a child finds what its parent found."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def main() -> None:
    """Entry of every child: runs its module as ``python -m`` does."""
    parent, module, *arguments = sys.argv[1:]
    die_with_parent(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
