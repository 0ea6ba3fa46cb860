"""A child process that speaks JSON lines: started, asked, killed and replaced by its parent, and ended with it.

Its own side stands here too: ``take_standard_output``, ``send``, ``die_with_parent``, ``outlive_parent``
and ``end_imports``.

Run by ``Child``: ``python -P -m autotune.executor.child PARENT MODULE ARGUMENTS`` ties itself to the life of the
process of that number, then runs the module, whose imports may take seconds.
"""

import contextlib
import ctypes
import gc
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, BinaryIO, Final, cast

from autotune.executor.compiler_key import begin_hashing
from autotune.executor.interruption import Interruption

GRACE_SECONDS: Final = 2.0  # between closing a child's input and killing it
KILL_SECONDS: Final = 5.0  # for a killed process to end; giving back the memory of a host and a GPU takes a second
POLL_SECONDS: Final = 0.005
COMPILING: Final = ("autotune.executor.worker", "autotune.executor.compile_server")  # these make Triton compile
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class ChildDiedError(RuntimeError):
    """A child ended without answering; the message carries its exit status and its last words."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_from_outside(self) -> bool:
        """Return True if another process ended it, as the host does where memory runs out: no fault of its work."""
        return self.status in (-signal.SIGKILL, -signal.SIGTERM)


StartProcess = Callable[[], "subprocess.Popen[bytes]"]
Started = Future["subprocess.Popen[bytes]"]
_orders: Final[dict[int, SimpleQueue[tuple[StartProcess, Started]]]] = {}  # by process: a forked one has no threads


def _start(start: StartProcess) -> "subprocess.Popen[bytes]":
    """Run ``start`` in a thread that lasts as long as this process; a child whose caller is interrupted is ended.

    The kernel ends a child with the *thread* that started it (``die_with_parent``): threads of users end earlier, as
    those of servers and of Ray's actors do.
    """
    own: SimpleQueue[tuple[StartProcess, Started]] = SimpleQueue()
    orders = _orders.setdefault(os.getpid(), own)  # atomic: one of several threads begins the thread
    if orders is own:
        threading.Thread(target=_serve, args=(own,), name="starter of autotune's children", daemon=True).start()
    started: Started = Future()
    orders.put((start, started))
    try:
        return started.result()
    except KeyboardInterrupt:
        started.add_done_callback(lambda started: None if started.exception() else started.result().kill())
        raise


def _serve(orders: "SimpleQueue[tuple[StartProcess, Started]]") -> None:
    while True:
        start, started = orders.get()
        try:
            started.set_result(start())
        except BaseException as error:  # raised where it was ordered
            started.set_exception(error)


class Child:
    """``python -m module arguments``, in a session of its own so that Ctrl-C reaches the parent alone."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.interruption: Interruption | None = None  # of whoever waits for it
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._buffer = b""
        self._is_left = False  # killed, and did not end
        self._process = _start(
            lambda: subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(os.getpid()), module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, "PYTHONPATH": _search_path(), **(environment or {})},
                start_new_session=True,
            )
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue one message; raise ChildDiedError if the child is gone."""
        assert self._process.stdin is not None
        try:
            send(cast(BinaryIO, self._process.stdin), message)
        except (OSError, ValueError):  # ValueError: it was killed, its pipes are closed
            raise self._death() from None

    @property
    def has_message(self) -> bool:
        """Return True if a message was read already and waits to be received."""
        return b"\n" in self._buffer

    def receive(self, timeout: float) -> dict[str, Any] | None:
        """Return the next message, or None after that many seconds; raise ChildDiedError if the child ended instead.

        Raise KeyboardInterrupt where its ``interruption`` is set.
        """
        assert self._process.stdout is not None
        if self._process.stdout.closed:  # killed
            raise self._death()
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno(), selectors.EVENT_READ)
            if self.interruption is not None:
                selector.register(self.interruption, selectors.EVENT_READ)
            while not self.has_message:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                if self.interruption is not None:
                    self.interruption.check()
                chunk = os.read(self.fileno(), 1 << 16)
                if not chunk:
                    raise self._death()
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _death(self) -> ChildDiedError:
        """Make the error that says how the child ended, and the last line that it printed."""
        status = self._await_end(GRACE_SECONDS)
        lines: list[str] = []
        if not self._log.closed:
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").strip().splitlines()
        words = f"exit status {'none yet' if status is None else status}"
        return ChildDiedError(words + (f": {lines[-1][:500]}" if lines else ""), status)

    def kill(self) -> None:
        """End the child and its whole process group at once.

        A process that hangs in the kernel, as in the driver of a GPU that fell off its bus, does not end when it is
        killed: it is left behind, with a warning, and a thread reaps it once it ends.
        """
        is_stuck = False
        if self._process.returncode is None and not self._is_left:  # a reaped one's number may be another's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            is_stuck = self._is_left = self._await_end(KILL_SECONDS) is None
            if is_stuck:
                threading.Thread(target=self._process.wait, name=f"reaper of {self.pid}", daemon=True).start()
            else:
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):  # an unread message of a dead child
                cast(IO[bytes], stream).close()
        if is_stuck:
            text = f"process {self.pid} was killed and did not end in {KILL_SECONDS:g} s, as where a driver hangs"
            warnings.warn(f"{text}; it is left behind, and may still hold its GPU", RuntimeWarning, stacklevel=2)

    def close(self) -> None:
        """Let the child finish by ending its input; kill it if it does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._await_end(GRACE_SECONDS)
        self.kill()

    def _await_end(self, seconds: float) -> int | None:
        """Return the exit status of a child that ended, or None after that many seconds.

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


def _search_path() -> str:
    """Return this process's import path, so that a child finds what its parent found; the current folder comes last.

    A ``json.py`` or ``torch.py`` that happens to lie in the current folder is no library. The folder that this package
    was imported from keeps its place.
    """
    try:
        here = Path.cwd()
    except OSError:  # it was removed
        return os.pathsep.join(filter(os.path.isabs, sys.path))
    paths = dict.fromkeys(path or str(here) for path in sys.path)
    root = Path(__file__).resolve().parents[2]
    current = [path for path in paths if Path(path).resolve() == here.resolve() != root]
    return os.pathsep.join([*(path for path in paths if path not in current), *current])


def take_standard_output() -> BinaryIO:
    """In a child: keep standard output for messages alone; whatever else is printed goes to standard error."""
    messages = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return messages


def send(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    """Write one message as one line."""
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, however it ends (Linux only).

    The kernel means the *thread* that started this process: ``Child`` starts all from one that lasts. A parent that
    ended before this call is noticed by its process number: then this process ends here.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take back what ``die_with_parent`` asked for."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


def end_imports() -> None:
    """Collect garbage from here on, but for what was imported: that stays, and forks share its memory."""
    gc.freeze()
    gc.enable()


def main() -> None:
    parent, module, *arguments = sys.argv[1:]
    die_with_parent(int(parent))
    sys.argv = [module, *arguments]
    if module in COMPILING:
        gc.disable()  # of a tenth of the time that imports take; until ``end_imports``
        begin_hashing()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
