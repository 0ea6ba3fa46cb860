"""Messages between a parent and its children: frozen dataclasses, each one JSON object with its type's name.

::

    to a worker          Start, OpenProblem, Screen, RunRace
    from a worker        Identified, Started, Opened | Unopened, WorkingOn, Outcome, Race | RaceFailed, MachineFault
    to a compile server  UseDevice, OpenProblem, Compile, KeepCompiling, StopCompiling, ExpectProblem
    from a server        Compiled, MachineFault (from its compilers also CompileAgain)
    to an interpreter    Interpret
    from an interpreter  Verdict, MachineFault
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from autotune import registry
from autotune.correctness import Verdict
from autotune.device import Device
from autotune.executor import Race
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Status, Toolchain

Entrant = int | str | None  # in a race: the place of a finalist, the name of a baseline, or neither
KindT = TypeVar("KindT")


@dataclass(frozen=True, slots=True)
class ProblemReference:
    """An operation with its implementations and a shape, by names and references: never code.

    ``carried`` is what the operation says of the shape beside (``Operation.carry``).
    """

    operation: str
    reference: str
    implementations: dict[str, str]
    shape: dict[str, Any]
    carried: str = ""

    def resolve(self) -> tuple[Operation[Any], Shape]:
        """In a child: register what the parent has registered, and return the operation and the shape."""
        registry.register(self.operation, self.reference)
        for name, reference in self.implementations.items():
            registry.register_implementation(self.operation, name, reference)
        operation = registry.get_operation(self.operation)
        shape = operation.shape_class(**self.shape)
        if self.carried:
            operation.receive(shape, self.carried)
        return operation, shape


def refer_to_problem(operation: Operation[Any], shape: Shape) -> ProblemReference:
    """Name what a child needs to open the same problem."""
    name, names = operation.name, registry.implementation_names(operation.name)
    references = {each: registry.implementation_reference(name, each) for each in names}
    carried = operation.carry(shape)
    return ProblemReference(name, registry.operation_reference(name), references, shape.as_dict(), carried)


@dataclass(frozen=True, slots=True)
class Start:
    """Open the GPU."""


@dataclass(frozen=True, slots=True)
class Identified:
    """The GPU is this one; its context is opened next."""

    device: Device
    toolchain: Toolchain


@dataclass(frozen=True, slots=True)
class Started:
    """The GPU's context is open."""


@dataclass(frozen=True, slots=True)
class OpenProblem:
    """Turn a worker to another problem, or open one more in a compile server; answers carry its number."""

    number: int
    problem: ProblemReference


@dataclass(frozen=True, slots=True)
class Opened:
    number: int


@dataclass(frozen=True, slots=True)
class Unopened:
    """Inputs or references cannot be made: of the problem of that number, or where it is None, of the open one."""

    reason: str
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Screen:
    candidate: Candidate
    early_stop: bool


@dataclass(frozen=True, slots=True)
class RunRace:
    """Race these candidates and baselines, but for the baselines named in ``without``."""

    candidates: tuple[Candidate, ...]
    seconds: float
    baselines: str | tuple[str, ...]
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkingOn:
    """The next step concerns this entrant: it is to blame if nothing follows."""

    entrant: Entrant


@dataclass(frozen=True, slots=True)
class RaceFailed:
    """A race that the entrant named last has ended."""

    status: Status
    message: str


@dataclass(frozen=True, slots=True)
class UseDevice:
    """Compile for this device; sent once, before all else."""

    device: Device


@dataclass(frozen=True, slots=True)
class Compile:
    """Compile one candidate ahead: the binaries for its first output, or for all of them."""

    number: int
    candidate: Candidate
    every_output: bool = False


@dataclass(frozen=True, slots=True)
class Compiled:
    """The answer to one ``Compile``, of the same candidate and outputs."""

    number: int
    outcome: Outcome
    every_output: bool


@dataclass(frozen=True, slots=True)
class CompileAgain:
    """A damaged entry of the compiler's cache was removed."""


@dataclass(frozen=True, slots=True)
class KeepCompiling:
    """Drop what was submitted for a problem and not answered, but for every output of these candidates."""

    number: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class StopCompiling:
    """Close the problem of that number, and drop what was submitted for it and not answered."""

    number: int


@dataclass(frozen=True, slots=True)
class ExpectProblem:
    """A later problem will ask for these: compile them when nothing else is to be compiled, and answer nothing."""

    problem: ProblemReference
    candidates: tuple[Candidate, ...]
    every_output: bool = False


@dataclass(frozen=True, slots=True)
class MachineFault:
    """This machine cannot do what was asked, whatever the candidate; of a compile with the number of its problem."""

    reason: str
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Interpret:
    problem: ProblemReference
    candidate: Candidate


ToWorker = Start | OpenProblem | Screen | RunRace
FromWorker = Identified | Started | Opened | Unopened | WorkingOn | Outcome | Race | RaceFailed | MachineFault
ToServer = UseDevice | OpenProblem | Compile | KeepCompiling | StopCompiling | ExpectProblem
FromServer = Compiled | CompileAgain | MachineFault
FromInterpreter = Verdict | MachineFault
Message = ToWorker | FromWorker | ToServer | FromServer | Interpret | FromInterpreter
_KINDS = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> dict[str, Any]:
    """Return a message as plain data; the inverse of ``decode``.

    Example:
        >>> encode(Opened(3))
        {'type': 'Opened', 'number': 3}
    """
    return {"type": type(message).__name__, **to_plain(message)}


def decode(data: Mapping[str, Any]) -> Message:
    message: Message = from_plain(_KINDS[data["type"]], data)
    return message


def to_plain(value: Any) -> Any:
    """Return dataclasses, configs and tuples as what JSON has."""
    if isinstance(value, Config):
        return dict(value)
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def from_plain(kind: type[KindT], data: Mapping[str, Any]) -> KindT:
    """Return the dataclass that ``to_plain`` was given, by the types of its fields."""
    return kind(**{name: _from_plain(hint, data[name]) for name, hint in _hints_of(cast(Hashable, kind)).items()})


@cache
def _hints_of(kind: Any) -> dict[str, Any]:
    return {field.name: get_type_hints(kind)[field.name] for field in fields(kind)}


def _from_plain(hint: Any, data: Any) -> Any:
    kinds = get_args(hint) if get_origin(hint) not in (tuple, dict) else ()  # the members of a union
    if isinstance(data, dict):
        kind: Any = next(filter(is_dataclass, kinds), hint)
        if kind is Config:
            return Config(data)
        return from_plain(cast(type[Any], kind), data) if is_dataclass(kind) else data
    if isinstance(data, list):
        item = get_args(next((kind for kind in kinds if get_origin(kind) is tuple), hint))[0]
        return tuple(_from_plain(item, each) for each in data)
    return hint(data) if isinstance(hint, type) and issubclass(hint, Enum) else data
