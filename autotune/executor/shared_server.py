"""One compile server for the pools of several GPUs: all cores compile for whichever of them has something to compile.

A thread reads what the server answers and puts it on the line of the pool that has asked, by the number of its problem.
A server that dies ends every line; the first pool to connect again starts another, which all that follow share.
"""

import contextlib
import itertools
import json
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from autotune.device import Device
from autotune.executor import messages
from autotune.executor.child import Child, ChildDiedError
from autotune.executor.interruption import Interruption
from autotune.executor.messages import encode

READ_SECONDS: Final = 3600.0  # at once, of a thread that reads until its server ends
END_SECONDS: Final = 10.0  # for a server to end: it is killed after a fifth of that


def start_server(settings: str) -> Child:
    """Start a compile server with its settings as JSON."""
    single_threaded = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return Child("autotune.executor.compile_server", settings, environment=single_threaded)


class SharedServer:
    """A compile server that several ``CompilePool`` use at once, each from a thread of its own.

    Attributes:
        numbers: those of problems, which no two pools may share.
        heard_at: ``time.monotonic()`` of its last answer to any pool.
        counts: of each pool, what returns the number of answers that it waits for; may be called from any thread.
    """

    def __init__(self, *, jobs: int, timeout: float, interruption: Interruption) -> None:
        self.numbers = itertools.count(1)
        self.heard_at = time.monotonic()
        self.counts: list[Callable[[], int]] = []
        self._settings = json.dumps({"jobs": jobs, "timeout": timeout})
        self._interruption = interruption
        self._device: Device | None = None
        self._lock = threading.Lock()  # of what follows
        self._lines: dict[int, Line] = {}  # by the numbers of their problems
        self._current = self._begin()

    @property
    def awaited(self) -> int:
        """The number of answers that its pools wait for, together."""
        return sum(count() for count in self.counts)

    def use(self, device: Device) -> None:
        """Compile for this device, whichever pool says so first; all GPUs are of one kind."""
        with self._lock:
            if self._device is None:
                self._device = device
                self._current.send(messages.UseDevice(device))
        assert self._device == device, f"{self._device} and {device} share a compile server"

    def connect(self) -> "Line":
        """Return a line to the server that runs, or to another where it has ended."""
        with self._lock:
            if self._current.is_ending:
                self._current = self._begin()
            line = Line(self, self._current, self._interruption)
            self._current.lines.add(line)
            return line

    def retire(self, line: "Line") -> None:
        """End the server of a line, unless it has ended already: it is silent for too long."""
        line.server.end()

    def close(self) -> None:
        """End the server and its compilers; safe to call twice."""
        self._current.end()
        self._current.reader.join(END_SECONDS)

    def _begin(self) -> "_Server":
        self.heard_at = time.monotonic()
        return _Server(self._settings, self._device, self._deliver)

    def _deliver(self, server: "_Server", message: dict[str, Any] | ChildDiedError) -> None:
        """Put an answer on the line that waits for it; what concerns the whole machine, or the server, on all."""
        self.heard_at = time.monotonic()
        with self._lock:
            number = None if isinstance(message, ChildDiedError) else message.get("number")
            lines = list(server.lines) if number is None else filter(None, [self._lines.get(number)])
            for line in lines:
                line.put(message)

    def route(self, number: int, line: "Line") -> None:
        with self._lock:
            self._lines[number] = line

    def unroute(self, number: int) -> None:
        with self._lock:
            self._lines.pop(number, None)

    def leave(self, line: "Line") -> None:
        """Forget a line: nothing is put on it any more once this returns."""
        with self._lock:
            line.server.lines.discard(line)
            self._lines = {number: each for number, each in self._lines.items() if each is not line}


class _Server:
    """One process of a shared server, and the thread that reads its answers until it ends."""

    def __init__(self, settings: str, device: Device | None, deliver: "Deliver") -> None:
        self.lines: set[Line] = set()
        self.is_ending = False
        self._deliver = deliver
        self._sending = threading.Lock()
        self._ended = Interruption()
        self._child = start_server(settings)
        self._child.interruption = self._ended
        self.pid = self._child.pid
        if device is not None:
            self.send(messages.UseDevice(device))
        self.reader = threading.Thread(target=self._read, name="reader of a compile server", daemon=True)
        self.reader.start()

    def send(self, message: messages.Message | Mapping[str, Any]) -> None:
        data = message if isinstance(message, Mapping) else encode(message)
        with contextlib.suppress(ChildDiedError), self._sending:  # found by the reader
            self._child.send(data)

    def end(self) -> None:
        self.is_ending = True
        self._ended.set()

    def _read(self) -> None:
        error = ChildDiedError("it was ended")
        try:
            while True:
                if (message := self._child.receive(READ_SECONDS)) is not None:
                    self._deliver(self, message)
        except ChildDiedError as death:
            error = death
        except KeyboardInterrupt:  # of ``end``
            pass
        self.is_ending = True
        self._deliver(self, error)
        with self._sending:
            self._child.close()


Deliver = Callable[[_Server, dict[str, Any] | ChildDiedError], None]


class Line:
    """One pool's line to a shared server; to ``CompilePool`` it is what a ``Child`` of its own would be."""

    def __init__(self, shared: SharedServer, server: _Server, interruption: Interruption) -> None:
        self.server = server
        self._shared = shared
        self._interruption = interruption
        self._answers: deque[dict[str, Any] | ChildDiedError] = deque()
        self._read, self._write = os.pipe()  # a byte for each answer
        self._is_closed = False

    @property
    def pid(self) -> int:
        return self.server.pid

    def fileno(self) -> int:
        return self._read

    @property
    def has_message(self) -> bool:
        return bool(self._answers) and not isinstance(self._answers[0], ChildDiedError)

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue one message; of a server that is gone the next ``receive`` tells."""
        match message["type"]:
            case messages.OpenProblem.__name__:
                self._shared.route(message["number"], self)
            case messages.StopCompiling.__name__:
                self._shared.unroute(message["number"])
        self.server.send(message)

    def put(self, message: dict[str, Any] | ChildDiedError) -> None:
        self._answers.append(message)
        os.write(self._write, b"!")

    def receive(self, timeout: float) -> dict[str, Any] | None:
        """Return the next answer, or None after that many seconds; raise ChildDiedError if the server ended instead."""
        with selectors.DefaultSelector() as selector:
            for each in (self._read, self._interruption.fileno()):
                selector.register(each, selectors.EVENT_READ)
            selector.select(timeout)
        self._interruption.check()
        if not self._answers:
            return None
        answer = self._answers[0]
        if isinstance(answer, ChildDiedError):  # the last, which is raised from now on
            raise answer
        os.read(self._read, 1)
        self._answers.popleft()
        return answer

    def close(self) -> None:
        """Leave the server, which goes on; safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._shared.leave(self)
            os.close(self._read)
            os.close(self._write)
