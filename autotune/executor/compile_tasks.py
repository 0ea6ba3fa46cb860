"""The work of a compile server: open problems, requests for them, and the compilers that run."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from autotune.executor import messages
from autotune.executor.compiler import PROBE_KERNEL
from autotune.implementation import Kernel
from autotune.operation import Operation
from autotune.registry import get_implementation, load_definition, load_kernel
from autotune.shape import Shape
from autotune.trial import Outcome, Status

PROBE_SECONDS: Final = 15.0  # a second on an idle machine
UNOPENED: Final = 0  # the number of every problem that no pool has opened yet: theirs begin with 1


@dataclass
class CompileProblem:
    """A problem: what each implementation is checked on, and what waits for a compiler."""

    operation: Operation[Any]
    shape: Shape
    reference: messages.ProblemReference
    checks: dict[str, tuple[Shape, ...]] = field(default_factory=dict)
    waiting: "deque[CompileTask]" = field(default_factory=deque)

    @classmethod
    def of(cls, reference: messages.ProblemReference) -> "CompileProblem":
        """Return the problem that a message refers to."""
        return cls(*reference.resolve(), reference)

    def checked_on(self, name: str) -> tuple[Shape, ...]:
        """Return the shapes that the worker checks an implementation on, beside its own; once for a problem."""
        if name not in self.checks:
            given = get_implementation(self.operation.name, name).check_shapes
            found = (given or load_definition(self.operation.name).check_shapes)(self.shape)
            self.checks[name] = tuple(each for each in found if each != self.shape)
        return self.checks[name]


@dataclass(frozen=True, slots=True)
class CompileTask:
    """A request, the kernel it is about, and if it is tried again: then it runs alone, and is believed."""

    request: messages.Compile
    kernel: Kernel
    shape: Shape
    also: tuple[Shape, ...] = ()
    is_again: bool = False
    is_guess: ClassVar[bool] = False

    @property
    def is_probe(self) -> bool:
        return self.kernel is PROBE_KERNEL


@dataclass(frozen=True, slots=True)
class Guess:
    """A request that a later problem is expected to make: nothing waits for it, and nobody is told how it ends.

    Its compiler alone resolves it: an import takes the server no time, and what it breaks is that compiler.
    """

    request: messages.Compile
    problem: messages.ProblemReference
    is_guess: ClassVar[bool] = True
    is_again: ClassVar[bool] = False
    is_probe: ClassVar[bool] = False

    def resolve(self) -> CompileTask:
        return make_task(CompileProblem.of(self.problem), self.request)


@dataclass
class Job:
    """One forked compiler: the task it works on, the pipe it answers through, and when it must be done."""

    task: CompileTask | Guess
    pid: int
    pipe: int
    deadline: float
    answer: bytes = field(default=b"")

    @property
    def number(self) -> int:
        return self.task.request.number


def make_task(problem: CompileProblem, request: messages.Compile) -> CompileTask:
    """Make the task of a request; its kernel is imported here once, so that every forked compiler has it."""
    name = request.candidate.implementation
    return CompileTask(request, load_kernel(problem.operation.name, name), problem.shape, problem.checked_on(name))


def verdict_on(job: Job, status: Status, message: str) -> messages.Compiled:
    """Return the verdict on a candidate whose compiler did not answer."""
    request = job.task.request
    outcome = Outcome(candidate=request.candidate, status=status, message=message)
    return messages.Compiled(request.number, outcome, request.every_output)
