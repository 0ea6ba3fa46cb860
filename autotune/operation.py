"""Operations: an ``Operation`` (torch- and triton-free data) and its ``Definition`` on tensors."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from autotune.errors import UsageError
from autotune.shape import Shape

if TYPE_CHECKING:
    import torch

ShapeT = TypeVar("ShapeT", bound=Shape)

PRODUCTS: Final = ("", "tf32", "float16", "bfloat16", "float32")  # types that an operation may say it multiplies in

# Of an operation: its folder in tables has it. The kernels of ``autotune.autotune`` are named MODULE.KERNEL.
NAME_FORM: Final = r"\w[\w-]*(\.\w[\w-]*)*"
# Folders beside or below those of operations in a folder of results.
FOLDER_NAMES: Final = frozenset({"bench", "compilations", "grids", "portfolios", "sweeps"})


def why_no_name(name: str) -> str | None:
    """Return why an operation cannot have a name, or None."""
    taken = ", ".join(sorted(FOLDER_NAMES))
    if isinstance(name, str) and re.fullmatch(NAME_FORM, name) and name not in FOLDER_NAMES:
        return None
    allowed = f"letters, digits, '_' and '-', in parts joined by single dots, and none of {taken}"
    return f"operation={name!r} is not allowed, since a folder of tables is named by it; expected {allowed}"


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of an operation for a shape, by formula: floating-point operations, and bytes moved once each."""

    flops: int
    bytes: int


def _supports_all(shape: Any) -> str | None:
    return None


def _carry_nothing(shape: Any) -> str:
    return ""


def _receive_nothing(shape: Any, text: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[ShapeT]):
    """A computation that has one or more implementations.

    Attributes:
        name: as tables, the registry and ``--operation`` call it.
        shape_class: the class of its shapes.
        cost: FLOPs and bytes of a shape.
        definition: its ``Definition``, or a ``"module:attribute"`` reference to it or to a class of it that takes no
            arguments; loading it imports torch.
        baselines: a reference to a sequence of ``Baseline``, the usual ones first; empty where there are none.
        unsupported: returns the reason why no implementation takes a shape, or None. Of several operations with one
            shape class, the first that supports a shape solves it.
        unsearchable: returns the reason why a search could not measure a shape that implementations take, such as
            arguments that nothing says, or None.
        multiplies_in: the type that its products are formed in, as data sheets name it, where it is not the shape's
            ``dtype``. ``"tf32"`` is of float32 alone: products may be rounded to TF32, which gives them its roof and
            its units in the gate.
        query_counts: returns the queries of each sequence of a batch, for an operation that spreads them unevenly.
        carry: returns what another process must know to make inputs of a shape beside the shape, as text; there it is
            given to ``receive``, unless it is empty.
        usual_batch: returns the same problem in a batch of a usual size, of sequences of a usual length: the one whose
            config batch-invariant picks serve to all (``autotune.dispatch.batch_invariance``); None where there are no
            such picks.
    """

    name: str
    shape_class: type[ShapeT]
    cost: Callable[[ShapeT], Cost]
    definition: "str | Definition"
    baselines: str = ""
    unsupported: Callable[[ShapeT], str | None] = _supports_all
    unsearchable: Callable[[ShapeT], str | None] = _supports_all
    multiplies_in: str = ""
    query_counts: Callable[[ShapeT], Sequence[int]] | None = None
    carry: Callable[[ShapeT], str] = _carry_nothing
    receive: Callable[[ShapeT, str], None] = _receive_nothing
    usual_batch: Callable[[ShapeT], ShapeT] | None = None

    def __post_init__(self) -> None:
        if self.multiplies_in not in PRODUCTS:
            allowed = ", ".join(map(repr, PRODUCTS))
            raise UsageError(f"multiplies_in={self.multiplies_in!r} of {self.name!r} is unknown; allowed: {allowed}")


class Definition(Protocol):
    """An operation on tensors: its inputs, its outputs, and what is correct. Loaded lazily, from torch alone.

    A class of one's own may be derived from it for the defaults that methods have.

    ``inputs`` are what ``make_inputs`` returns. Outputs are tuples of tensors; the first is what callers get by
    default, the others (such as the log-sum-exp of attention) on request.
    """

    def make_inputs(self, shape: Any, *, seed: int, device: str, data: str = "normal") -> Any:
        """Draw random inputs of a shape; ``data`` is one of ``normal``, ``large``, ``tails``."""

    def check_shapes(self, shape: Any) -> Sequence[Any]:
        """Return small problems that run the very binaries of ``shape``, one of them off every tile's multiple."""

    def empty_outputs(self, inputs: Any) -> "tuple[torch.Tensor, ...]":
        """Allocate every output that a user can get, filled with NaN, so that an unwritten element shows."""

    def reference(self, inputs: Any, *, dtype: "torch.dtype | None" = None) -> "tuple[torch.Tensor, ...]":
        """Compute every output from torch alone: in fp64, or as eager torch computes it in ``dtype``."""

    def statistic_slack(self, inputs: Any) -> float:
        """Return the absolute error that documented precision may add to every output but the first."""
        return 0.0


@runtime_checkable
class ServedDefinition(Definition, Protocol):
    """The definition of an operation that has a ``ServedBaseline``: it makes inputs of a user's call, too."""

    def bind_inputs(self, shape: Any, tensors: Sequence[Any], options: dict[str, Any]) -> Any:
        """Make inputs of the tensors and options of a user's call, for that baseline.

        Raises:
            InputMismatchError: they do not fit the shape.
        """


@runtime_checkable
class RelativeDefinition(Definition, Protocol):
    """A definition whose reference may be a config of the kernel itself, where nothing says what is correct."""

    @property
    def units(self) -> float | None:
        """Return the units in the last place that outputs may differ by; None: as for every definition."""

    @property
    def note(self) -> str:
        """Return what rows say of a reference that proves only that configs agree; else nothing."""


class Baseline(Protocol):
    """A way to compute an operation that is compared and not tuned by us; it imports its library on first use."""

    @property
    def name(self) -> str:
        """Return its name, as tables and ``--against`` call it."""

    @property
    def is_usual(self) -> bool:
        """True for what users would run otherwise and is ready at once: a search races the fastest of these."""

    @property
    def verified_on_hardware(self) -> bool:
        """False until it has run on the hardware that it is written for."""

    def available(self) -> str | None:
        """Return None where it can run, else what is missing here and how to install it; never raises."""

    def unsupported(self, shape: Any) -> str | None:
        """Return why it cannot compute a shape, or None; needs neither its library nor a device."""

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        """Return a call over the operation's inputs, with everything done that a user does once before the first step.

        The call alone is timed, so whatever compiles has run once here. It returns the operation's first output, in
        its sizes.

        Raises:
            MissingDependencyError: ``available`` says why.
            BaselineUnavailableError: ``unsupported`` says why, or this device cannot do it.
        """


@runtime_checkable
class ServedBaseline(Baseline, Protocol):
    """A baseline that ``get_kernel(..., among="fastest")`` may serve: one without copies of its inputs."""

    def serve(self, shape: Any, inputs: Any) -> "torch.Tensor":
        """Compute one call of a user, with nothing prepared before it; returns the operation's first output.

        Raises:
            BaselineUnavailableError: it cannot do this call.
        """
