"""The parent's side of the compile server: candidates go in, outcomes come out, the GPU is never touched."""

import contextlib
import itertools
import json
import math
import os
import re
import time
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from autotune.device import Device
from autotune.errors import MissingDependencyError
from autotune.executor import messages
from autotune.executor.child import Child, ChildDiedError
from autotune.executor.messages import decode, encode, refer_to_problem
from autotune.executor.shared_server import Line, SharedServer, start_server
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.trial import Candidate, Outcome

COMPILE_SECONDS: Final = 60.0  # longer than any candidate of a bounded space has taken
SERVER_SECONDS: Final = 120.0  # for the server to import torch and kernels, beside what it compiles
MAX_DEATHS: Final = 3  # of servers in a row without one finished compile: then the machine or the kernel is at fault
COMPILER_MIB: Final = 500  # of memory that a compiler takes for itself, with what it starts
MEMORY_FILE: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")  # version 2, as a container sees its own


@dataclass(frozen=True, slots=True)
class Jobs:
    """The number of compilers that run at once, and what limits it."""

    count: int
    reason: str


def limit_jobs(wanted: int | None, *, spare: int = 1) -> Jobs:
    """Return how many compilers to run: as wanted, by default all cores but one, if the free memory holds them.

    Of the limits of the machine and of the cgroup the least counts; one compiler always runs. ``spare`` are the cores
    that are left to what measures, one for each GPU.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = Jobs(max(1, cores - spare), f"{cores} cores") if wanted is None else Jobs(wanted, f"jobs={wanted}")
    quota = re.match(r"(\d+) (\d+)", _read(CGROUP / "cpu.max"))
    if wanted is None and quota and (whole := max(1, int(quota[1]) // int(quota[2]))) < cores:
        jobs = Jobs(max(1, whole - spare), f"{whole} cores of the cgroup")
    free_kib = _number(r"^MemAvailable:\s+(\d+) kB", MEMORY_FILE)  # without swapping, on Linux
    free_mib = None if free_kib is None else free_kib // 1024
    for free, where in ((free_mib, "free memory"), (_cgroup_free_mib(), "free memory of the cgroup")):
        if free is not None and free < jobs.count * COMPILER_MIB:
            jobs = Jobs(max(1, free // COMPILER_MIB), f"{free} MiB of {where} at {COMPILER_MIB} MiB a compiler")
    return jobs


def _cgroup_free_mib() -> int | None:
    """Return the memory that the cgroup may still take, if it is limited; unused cached files give way."""
    limit, used = (_number(r"^(\d+)", CGROUP / name) for name in ("memory.max", "memory.current"))
    if limit is None or used is None:
        return None
    cached = _number(r"^inactive_file (\d+)", CGROUP / "memory.stat") or 0
    return max(0, limit - used + cached) // 2**20


def _number(pattern: str, path: Path) -> int | None:
    """Return the number that a pattern finds in a file; None where there is no such file or number."""
    found = re.search(pattern, _read(path), re.MULTILINE)
    return int(found[1]) if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class CompilePool:
    """Compiles ahead in processes that never touch the GPU; finished outcomes come in any order.

    A compile server that dies or falls silent is replaced, and what was in flight is compiled again.

    Args:
        device: what is compiled for; None where it is not known yet, and ``use`` names it before a problem is opened.
        server: one that several pools share, with the same jobs and timeout; one of its own by default.
    """

    def __init__(self, device: Device | None, *, jobs: int, timeout: float, server: SharedServer | None = None) -> None:
        self._settings = json.dumps({"jobs": jobs, "timeout": timeout})
        self._jobs = jobs
        self._server = server
        self._numbers = itertools.count(1) if server is None else server.numbers
        self._device = device
        self._timeout = timeout
        self._problem: messages.ProblemReference | None = None
        self._number = 0
        self._in_flight: dict[Candidate, bool] = {}  # in order; True: for every output
        self._prepared: set[Candidate] = set()  # of the open problem
        self._preparing: set[Candidate] = set()  # those of them that were not answered yet
        self._deaths = 0
        self._deadline = math.inf
        if server is not None:
            server.counts.append(self._count_awaited)
        self._child = self._start()

    def use(self, device: Device) -> None:
        """Compile for this device from now on; the server has begun to import before it was known."""
        self._device = device
        if self._server is not None:
            self._server.use(device)
        else:
            self._send(messages.UseDevice(device))

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        """Turn to another problem; compiles of the last one are stopped."""
        self._problem = refer_to_problem(operation, shape)
        self._prepared.clear()
        self.stop()

    def submit(self, candidate: Candidate, *, every_output: bool = False) -> None:
        """Queue one candidate: the binaries for its first output, or for all of them.

        All of them are not asked for again while they are being prepared: their answer is the outcome.
        """
        if not self._in_flight:
            self._extend_deadline()
        self._in_flight[candidate] = every_output
        if every_output and candidate in self._preparing:
            self._preparing.remove(candidate)
        else:
            self._send(messages.Compile(self._number, candidate, every_output))

    def prepare(self, candidate: Candidate) -> None:
        """Compile a candidate's binaries for every output, so that they are found later; no outcome comes of it."""
        if candidate not in self._prepared and candidate not in self._in_flight:
            self._prepared.add(candidate)
            self._preparing.add(candidate)
            self._send(messages.Compile(self._number, candidate, every_output=True))

    def expect(
        self, operation: Operation[Any], shape: Shape, candidates: Iterable[Candidate], *, every_output: bool = False
    ) -> None:
        """Let the server compile for a later problem when it has nothing else to do; no answer comes of it.

        What is lost with a server that dies, or fails, is compiled when it is submitted.
        """
        problem = refer_to_problem(operation, shape)
        self._send(messages.ExpectProblem(problem, tuple(candidates), every_output))

    def stop_all_but(self, candidates: Iterable[Candidate]) -> None:
        """Drop what was submitted and not received, and what is prepared but for these; the problem stays open."""
        kept = self._preparing.intersection(candidates)
        if kept:
            self._in_flight.clear()
            self._forget_preparing(self._preparing - kept)
            self._send(messages.KeepCompiling(self._number, tuple(kept)))
        else:
            self.stop()

    def stop(self) -> None:
        """Drop what was submitted and not received; the problem stays open."""
        self._in_flight.clear()
        self._forget_preparing()
        if self._number:
            self._send(messages.StopCompiling(self._number))
        self._number = next(self._numbers)
        assert self._problem is not None
        self._send(messages.OpenProblem(self._number, self._problem))

    def receive(self, timeout: float) -> Outcome | None:
        """Return the next finished compile of the open problem, or None after that many seconds."""
        until = time.monotonic() + timeout
        while True:
            try:
                wait = min(until, self.deadline) - time.monotonic()
                message = self._child.receive(max(0.0, wait))
            except ChildDiedError as error:  # the server, not one of its compilers
                if not self._in_flight:
                    self._forget_preparing()
                    return None  # found by the next candidate
                self._restart(str(error))
                continue
            if message is None:
                if time.monotonic() < self.deadline:
                    return None
                self._restart("they were silent for too long")
                continue
            answer = decode(message)
            if isinstance(answer, messages.MachineFault):
                if answer.number in (None, self._number):
                    if self._in_flight:
                        raise self._failure(answer.reason)
                    self._forget_preparing()  # one of them has met it; the race asks anew
                continue
            if isinstance(answer, messages.Compiled) and answer.number == self._number:
                self._deaths = 0
                self._extend_deadline()
                candidate = answer.outcome.candidate
                if self._in_flight.get(candidate) == answer.every_output:
                    del self._in_flight[candidate]
                    return answer.outcome
                if answer.every_output:  # binaries that are found later; those of the first output are others
                    self._preparing.discard(candidate)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def is_awaited(self) -> bool:
        """True while the server owes an answer, be it one of which no outcome comes."""
        return bool(self._count_awaited())

    @property
    def spare_jobs(self) -> int:
        """The number of compilers that nothing waits for, of any pool of the server."""
        return max(0, self._jobs - (self._count_awaited() if self._server is None else self._server.awaited))

    @property
    def deadline(self) -> float:
        """Until when the server may be silent; infinite while it owes nothing."""
        if not self._in_flight:
            return math.inf
        return self._deadline if self._server is None else max(self._deadline, self._server.heard_at + self._patience)

    @property
    def has_message(self) -> bool:
        return self._child.has_message

    def fileno(self) -> int:
        return self._child.fileno()

    def close(self) -> None:
        """End the server and its compilers, or leave a shared one and what was submitted; safe to call twice."""
        if self._server is not None and self.is_awaited:
            self._in_flight.clear()
            self._forget_preparing()
            self._send(messages.StopCompiling(self._number))
        self._child.close()

    def _count_awaited(self) -> int:
        return len(self._in_flight) + len(self._preparing)

    def _start(self) -> Child | Line:
        if self._server is not None:
            return self._server.connect()
        child = start_server(self._settings)
        if self._device is not None:
            with contextlib.suppress(ChildDiedError):  # found by ``receive``
                child.send(encode(messages.UseDevice(self._device)))
        return child

    def _send(self, message: messages.Message) -> None:
        with contextlib.suppress(ChildDiedError):  # found by ``receive``
            self._child.send(encode(message))

    @property
    def _patience(self) -> float:
        """For how many seconds the server may be silent: as long as a candidate takes that is tried twice."""
        return SERVER_SECONDS + 2 * self._timeout

    def _extend_deadline(self) -> None:
        self._deadline = time.monotonic() + self._patience

    def _restart(self, reason: str) -> None:
        """Start the server again with what it had; give up when that helps nothing."""
        self._deaths += 1
        if self._deaths > MAX_DEATHS:
            raise self._failure(reason)
        if self._server is not None and isinstance(self._child, Line):
            self._server.retire(self._child)
        self._child.close()
        self._child = self._start()
        self._forget_preparing()
        self._extend_deadline()
        assert self._problem is not None
        self._send(messages.OpenProblem(self._number, self._problem))
        for candidate, every_output in self._in_flight.items():
            self._send(messages.Compile(self._number, candidate, every_output))

    def _forget_preparing(self, which: Set[Candidate] | None = None) -> None:
        """Let what is being prepared, or some of it, be prepared anew: no answer comes, or none that counts."""
        forgotten = set(self._preparing if which is None else which)
        self._preparing -= forgotten
        self._prepared -= forgotten

    def _failure(self, reason: str) -> MissingDependencyError:
        self._deaths = 0
        self._in_flight.clear()
        self._forget_preparing()
        return MissingDependencyError(f"this machine cannot compile kernels: {reason}; run `autotune doctor`")
