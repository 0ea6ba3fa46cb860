"""A process that loads torch and triton once and forks a short-lived child for every candidate it compiles.

Forking shares the loaded libraries' memory between all compilers, isolates a crash to one candidate, and lets a timeout
kill a compiler with everything it started. It never touches a GPU. Run by ``CompilePool``:
``python -m autotune.executor.compile_server``; JSON lines on standard input and output.

What says nothing of a candidate is no verdict on it: a compiler that another process kills (the host, out of memory),
or that has read a damaged entry of Triton's cache, is tried once more, alone. Before the first failure is believed, a
least kernel must compile here: where it does not, the machine is at fault.

Several problems may be open at once, as where several GPUs measure: they take turns with the compilers. What a later
problem is expected to ask for is compiled when nothing waits, and gives way to what comes.
"""

import contextlib
import json
import os
import selectors
import signal
import sys
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO

from autotune.device import Device
from autotune.errors import one_line
from autotune.executor import messages
from autotune.executor.child import die_with_parent, end_imports, outlive_parent, send, take_standard_output
from autotune.executor.compile_tasks import (
    PROBE_SECONDS,
    UNOPENED,
    CompileProblem,
    CompileTask,
    Guess,
    Job,
    make_task,
    verdict_on,
)
from autotune.executor.compiler import (
    PROBE,
    PROBE_KERNEL,
    DamagedCacheError,
    MachineFaultError,
    compile_candidate,
    use_target,
)
from autotune.executor.compiler_key import hash_compiler
from autotune.executor.messages import decode, encode
from autotune.trial import Outcome, Status


class CompileServer:
    """Reads requests, keeps up to ``jobs`` compilers running, writes an outcome for each."""

    def __init__(self, answers: BinaryIO, *, jobs: int, timeout: float) -> None:
        self._device: Device
        self._answers = answers
        self._jobs = jobs
        self._timeout = timeout
        self._parent = os.getppid()
        self._problems: dict[int, CompileProblem] = {}  # by number; the first with something to compile is next
        self._guesses: deque[Guess] = deque()
        self._running: dict[int, Job] = {}
        self._selector = selectors.DefaultSelector()
        self._can_compile = False  # this machine, as the first success shows
        self._doubted: list[messages.Compiled] = []  # failures that wait for the probe

    def serve(self) -> None:
        """Run until standard input ends, or the answers are no longer read; no compiler outlives it."""
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
                        self._accept(decode(json.loads(line)))
                elif key.fd in self._running:  # not ended by a ``StopCompiling`` of this very round
                    self._read(self._running[key.fd])
            self._expire()
            self._start()

    def _accept(self, request: messages.Message) -> None:
        match request:
            case messages.UseDevice():
                use_target(request.device.architecture)
                self._device = request.device
            case messages.OpenProblem():
                self._problems[request.number] = CompileProblem.of(request.problem)
                self._guesses = deque(each for each in self._guesses if not self._is_asked_for(each))
            case messages.ExpectProblem():
                asked = (messages.Compile(UNOPENED, each, request.every_output) for each in request.candidates)
                self._guesses.extend(Guess(each, request.problem) for each in asked)
            case messages.StopCompiling():
                self._close(request.number)
            case messages.KeepCompiling():
                self._keep(request)
            case messages.Compile():
                problem = self._problems[request.number]
                try:
                    problem.waiting.append(make_task(problem, request))
                except Exception as error:
                    reason = f"{request.candidate.implementation}: {one_line(error)}"
                    self._send(messages.MachineFault(reason, request.number))

    def _is_asked_for(self, guess: Guess) -> bool:
        """Return True if its problem is open: that asks for its first binaries itself, for its race's only later."""
        is_open = any(each.reference == guess.problem for each in self._problems.values())
        return is_open and not guess.request.every_output

    def _next(self) -> deque[CompileTask] | deque[Guess]:
        """Return what waits of the problem whose turn it is; guesses where nothing waits, if there are any."""
        return next((each.waiting for each in self._problems.values() if each.waiting), self._guesses)

    def _start(self) -> None:
        while (waiting := self._next()) and self._make_room(waiting[0]):
            task = waiting.popleft()
            if not task.is_guess:
                self._problems[task.request.number] = self._problems.pop(task.request.number)  # behind all others
            if not self._running:
                # Killed with its parent, it could not end what compilers have started; it sees its input's end instead.
                outlive_parent()
            read_end, write_end = os.pipe()
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                os.close(read_end)
                self._compile(task, write_end, server)
            os.close(write_end)
            patience = PROBE_SECONDS if task.is_probe else self._timeout
            self._running[read_end] = Job(task, pid, read_end, time.monotonic() + patience)
            self._selector.register(read_end, selectors.EVENT_READ)

    def _make_room(self, coming: CompileTask | Guess) -> bool:
        """Return True if a compiler may begin with what comes.

        A search that waits for its compiles must not lose a second to a guess about another: guesses are ended for it,
        the youngest first, and begun anew later.
        """
        while len(self._running) >= self._limit(coming):
            guesses = [(job, job.task) for job in self._running.values() if isinstance(job.task, Guess)]
            if coming.is_guess or not guesses:
                return False
            youngest, guess = guesses[-1]
            self._end(youngest)
            if not self._is_asked_for(guess):
                self._guesses.appendleft(guess)
        return True

    def _limit(self, coming: CompileTask | Guess) -> int:
        """Return the number of compilers that may run; one alone while a task is tried again."""
        tasks = (coming, *(job.task for job in self._running.values()))
        return 1 if any(task.is_again for task in tasks) else self._jobs

    def _compile(self, task: CompileTask | Guess, pipe: int, server: int) -> None:
        """In the forked child: compile, answer, and end without running the parent's exit handlers."""
        code = 1
        try:
            os.setpgid(0, 0)
            die_with_parent(server)
            answer = encode(self._try_to_compile(task.resolve() if isinstance(task, Guess) else task))
            with os.fdopen(pipe, "wb") as stream:
                stream.write(json.dumps(answer).encode())
            code = 0
        finally:
            os._exit(code)

    def _try_to_compile(self, task: CompileTask) -> messages.FromServer:
        request, also = task.request, task.also
        compile_it = partial(compile_candidate, task.kernel, request.candidate, task.shape, self._device, also=also)
        try:
            outcome = compile_it(every_output=request.every_output, purge=not task.is_again)
        except DamagedCacheError:
            return messages.CompileAgain()
        except MachineFaultError as error:
            return messages.MachineFault(str(error), request.number)
        return messages.Compiled(request.number, outcome, request.every_output)

    def _read(self, job: Job) -> None:
        chunk = os.read(job.pipe, 1 << 16)
        if chunk:
            job.answer += chunk
            return
        code = self._end(job)
        if job.answer:
            answer = decode(json.loads(job.answer))
        elif code == -signal.SIGKILL:  # it ended before we ended it
            answer = verdict_on(job, Status.OUT_OF_MEMORY, "the compiler was killed from outside (SIGKILL)")
        else:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
            answer = verdict_on(job, Status.COMPILE_ERROR, f"the compiler {how}")
        self._judge(job.task, answer)

    def _judge(self, task: CompileTask | Guess, answer: Any) -> None:
        """Answer, or try again, or ask the probe first; of a guess the cache has all that is wanted."""
        if isinstance(task, Guess):
            return
        is_starved = isinstance(answer, messages.Compiled) and answer.outcome.status is Status.OUT_OF_MEMORY
        if (is_starved or isinstance(answer, messages.CompileAgain)) and not task.is_again:
            self._problems[task.request.number].waiting.appendleft(replace(task, is_again=True))
        elif isinstance(answer, messages.MachineFault):
            self._send(answer)
        elif task.is_probe:
            self._settle_doubt(answer.outcome)
        elif is_starved:
            hint = "also when it ran alone, as where the host's memory runs out; free some"
            outcome = replace(answer.outcome, message=f"{answer.outcome.message}, {hint}")
            self._send(replace(answer, outcome=outcome))
        elif answer.outcome.status in (Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT) and not self._can_compile:
            if not self._doubted:
                self._probe(answer.number)
            self._doubted.append(answer)
        else:
            self._can_compile = True
            self._send(answer)

    def _probe(self, number: int) -> None:
        """Compile the least kernel next of what is compiled for a problem."""
        problem = self._problems[number]
        problem.waiting.appendleft(CompileTask(messages.Compile(number, PROBE), PROBE_KERNEL, problem.shape))

    def _settle_doubt(self, probed: Outcome) -> None:
        """Believe the failures, or tell that this machine cannot compile the least kernel."""
        doubted: list[messages.FromServer] = list(self._doubted)
        self._doubted = []
        if probed.status is not Status.OK:
            doubted = [messages.MachineFault(f"a kernel of one line does not compile: {probed.message}")]
        else:
            self._can_compile = True
        for answer in doubted:
            self._send(answer)

    def _expire(self) -> None:
        now = time.monotonic()
        for job in [job for job in self._running.values() if job.deadline < now]:
            self._end(job)
            patience = PROBE_SECONDS if job.task.is_probe else self._timeout
            message = f"compiling took longer than {patience:.0f} s"
            self._judge(job.task, verdict_on(job, Status.COMPILE_TIMEOUT, message))

    def _end(self, job: Job) -> int:
        """Kill a compiler and whatever it started; returns its exit status."""
        for group in (-job.pid, job.pid):  # a child that has not made its group yet is killed by its own number
            with contextlib.suppress(ProcessLookupError):
                os.kill(group, signal.SIGKILL)
        _, status = os.waitpid(job.pid, 0)
        self._selector.unregister(job.pipe)
        os.close(job.pipe)
        del self._running[job.pipe]
        if not self._running:
            die_with_parent(self._parent)
        return os.waitstatus_to_exitcode(status)

    def _send(self, answer: messages.FromServer) -> None:
        send(self._answers, encode(answer))

    def _close(self, number: int) -> None:
        """End what is compiled for a problem; a probe that others wait for is one of theirs from then on."""
        if (problem := self._problems.pop(number, None)) is not None:
            self._guesses = deque(each for each in self._guesses if each.problem != problem.reference)
        for job in [job for job in self._running.values() if job.number == number]:
            self._end(job)
        was_probing = bool(self._doubted) and self._doubted[0].number == number
        self._doubted = [each for each in self._doubted if each.number != number]
        if was_probing and self._doubted:
            self._probe(self._doubted[0].number)

    def _keep(self, request: messages.KeepCompiling) -> None:
        """End what is compiled for a problem but for what is kept, and the probe, which doubts wait for."""

        def is_kept(task: CompileTask | Guess) -> bool:
            is_wanted = task.request.every_output and task.request.candidate in request.candidates
            return is_wanted or task.is_probe

        problem = self._problems[request.number]
        problem.waiting = deque(filter(is_kept, problem.waiting))
        for job in [job for job in self._running.values() if job.number == request.number]:
            if not is_kept(job.task):
                self._end(job)

    def _stop(self) -> None:
        for job in list(self._running.values()):
            self._end(job)


def main() -> None:
    """Run the child: jobs and timeout come as one JSON argument."""
    settings = json.loads(sys.argv[1])
    answers = take_standard_output()
    end_imports()
    hash_compiler()  # before the first fork, so that every compiler has it
    with contextlib.suppress(BrokenPipeError):  # the parent was killed while it was answered
        CompileServer(answers, jobs=settings["jobs"], timeout=settings["timeout"]).serve()
    os._exit(0)  # torch takes 0.6 s to take itself down, for which the parent would wait


if __name__ == "__main__":
    main()
