"""A process that loads torch and triton once and forks a short-lived child for every config it compiles.

Forking shares the loaded libraries' memory between all compilers, isolates a crash to one config, and lets a timeout
kill a compiler with everything it started. A compiler that somebody else kills (the host, out of memory) says nothing
of its config: it is tried once more, alone. It never touches a GPU. Run by ``CompilePool``:
``python -m autotune.executor.compile_server``; JSON lines on standard input and output.
"""

import contextlib
import json
import os
import selectors
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from autotune.device import Device
from autotune.executor.compiler import compile_config, use_target
from autotune.executor.messages import (
    die_with_parent,
    open_problem,
    outcome_to_json,
    outlive_parent,
    send,
    take_standard_output,
)
from autotune.space import Config
from autotune.trial import Outcome, Status


@dataclass
class _Job:
    """One forked compiler: the request it works on, the pipe it answers through, and when it must be done."""

    request: dict[str, Any]
    pid: int
    pipe: int
    deadline: float
    answer: bytes = field(default=b"")


class CompileServer:
    """Reads requests, keeps up to ``jobs`` compilers running, writes an outcome for each."""

    def __init__(self, device: Device, messages: BinaryIO, *, jobs: int, timeout: float) -> None:
        self._device = device
        self._messages = messages
        self._jobs = jobs
        self._timeout = timeout
        self._parent = os.getppid()
        self._waiting: deque[dict[str, Any]] = deque()
        self._running: dict[int, _Job] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Run until standard input ends, or nobody reads the answers any more; no compiler outlives it.

        Where there may be compilers it is not killed with its parent, whose end is the end of its input: it must be
        left the moment to kill what they have started.
        """
        try:
            self._serve()
        finally:
            self._stop()

    def _serve(self) -> None:
        os.set_blocking(0, False)
        self._selector.register(0, selectors.EVENT_READ)
        received = b""
        while True:
            for key, _ in self._selector.select(timeout=0.2):
                if key.fd == 0:
                    chunk = os.read(0, 1 << 16)
                    if not chunk:
                        return
                    received += chunk
                    *lines, received = received.split(b"\n")
                    for line in lines:
                        self._accept(json.loads(line))
                elif key.fd in self._running:  # not ended by an "open" of this very round
                    self._read(self._running[key.fd])
            self._expire()
            self._start()

    def _accept(self, request: dict[str, Any]) -> None:
        if request["do"] == "compile":
            self._waiting.append(request)
            return
        self._stop()
        if request["do"] == "open":
            die_with_parent(self._parent)  # no compiler runs, and imports may take seconds
            open_problem(request)  # import the kernel here once, so that every forked compiler has it
            outlive_parent()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._limit():
            request = self._waiting.popleft()
            read_end, write_end = os.pipe()
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                os.close(read_end)
                self._compile(request, write_end, server)
            os.close(write_end)
            self._running[read_end] = _Job(request, pid, read_end, time.monotonic() + self._timeout)
            self._selector.register(read_end, selectors.EVENT_READ)

    def _limit(self) -> int:
        """How many compilers may run; one alone while a killed one is tried again."""
        requests = (self._waiting[0], *(job.request for job in self._running.values()))
        return 1 if any("again" in request for request in requests) else self._jobs

    def _compile(self, request: dict[str, Any], pipe: int, server: int) -> None:
        """In the forked child: compile, answer, and end without running the parent's exit handlers."""
        code = 1
        try:
            os.setpgid(0, 0)
            die_with_parent(server)
            _, kernel, shape = open_problem(request)
            outcome = compile_config(kernel, Config(request["config"]), shape, self._device)
            with os.fdopen(pipe, "wb") as stream:
                stream.write(json.dumps(outcome_to_json(outcome)).encode())
            code = 0
        finally:
            os._exit(code)

    def _read(self, job: _Job) -> None:
        chunk = os.read(job.pipe, 1 << 16)
        if chunk:
            job.answer += chunk
            return
        code = self._end(job)
        if job.answer:
            outcome = json.loads(job.answer)
        elif code == -signal.SIGKILL:  # it ended before we ended it
            outcome = _outcome(job, Status.OUT_OF_MEMORY, "the compiler was killed from outside (SIGKILL)")
        else:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
            outcome = _outcome(job, Status.COMPILE_ERROR, f"the compiler {how}")
        if outcome["status"] != Status.OUT_OF_MEMORY:
            self._reply(job, outcome)
        elif "again" not in job.request:
            self._waiting.appendleft({**job.request, "again": True})
        else:
            hint = "also when it ran alone, as where the host's memory runs out; free some"
            self._reply(job, {**outcome, "message": f"{outcome['message']}, {hint}"})

    def _expire(self) -> None:
        now = time.monotonic()
        for job in [job for job in self._running.values() if job.deadline < now]:
            self._end(job)
            message = f"compiling took longer than {self._timeout:.0f} s"
            self._reply(job, _outcome(job, Status.COMPILE_TIMEOUT, message))

    def _end(self, job: _Job) -> int:
        """Kill a compiler and whatever it started; returns its exit status."""
        for group in (-job.pid, job.pid):  # a child that has not made its group yet is killed by its own number
            with contextlib.suppress(ProcessLookupError):
                os.kill(group, signal.SIGKILL)
        _, status = os.waitpid(job.pid, 0)
        self._selector.unregister(job.pipe)
        os.close(job.pipe)
        del self._running[job.pipe]
        return os.waitstatus_to_exitcode(status)

    def _reply(self, job: _Job, outcome: dict[str, Any]) -> None:
        send(self._messages, {"problem": job.request["problem"], "outcome": outcome})

    def _stop(self) -> None:
        self._waiting.clear()
        for job in list(self._running.values()):
            self._end(job)


def _outcome(job: _Job, status: Status, message: str) -> dict[str, Any]:
    """The verdict on a config whose compiler did not answer."""
    return outcome_to_json(Outcome(config=Config(job.request["config"]), status=status, message=message))


def main() -> None:
    """Entry of the child: the device, jobs and timeout come as one JSON argument."""
    settings = json.loads(sys.argv[1])
    device = Device(**settings["device"])
    messages = take_standard_output()
    use_target(device.architecture)
    with contextlib.suppress(BrokenPipeError):  # the parent was killed while it was answered
        CompileServer(device, messages, jobs=settings["jobs"], timeout=settings["timeout"]).serve()


if __name__ == "__main__":
    main()
