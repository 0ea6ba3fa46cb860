"""A served kernel: the candidate that is called, the ones behind it, and where each comes from."""

import importlib.metadata
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, Literal, NoReturn

from autotune.errors import AutotuneError, BaselineUnavailableError
from autotune.operation import Baseline, ServedBaseline, ServedDefinition
from autotune.registry import get_implementation, load_baselines, load_definition, load_kernel
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Trial

Rung = Literal["exact", "nearest", "same model", "default"]

_lock: Final = threading.Lock()
_refused = 0


@dataclass(frozen=True, slots=True)
class Provenance:
    """Why a candidate is served: the rung of the ladder, the row it came from, and what differs from here.

    ``row`` and ``distance`` are None on the rung ``default``. ``origin`` says whose table the row stands in.
    ``distance`` is the shapes' (``Shape.distance``): 1 for a factor of two in one size, 0 for the very shape.
    ``baseline`` names the baseline that won the row's race and is served in place of its candidate
    (``among="fastest"``).
    """

    rung: Rung
    reason: str
    row: Trial | None = None
    origin: Literal["user", "shipped", ""] = ""
    distance: float | None = None
    baseline: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """The accepted differences in source and toolchain between the row and this process."""
        if self.row is None or self.baseline:
            return ()
        notes = []
        implementation = get_implementation(self.row.operation, self.row.implementation)
        if self.row.source_hash != implementation.source_hash:
            notes.append(f"{implementation.library or 'the kernel source'} has changed since it was tuned")
        here = _installed("triton")
        if here and here != self.row.toolchain.triton:
            notes.append(f"tuned with triton {self.row.toolchain.triton}, here is {here}")
        return tuple(notes)

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate that may be served, and why. Of a baseline the implementation is its name and the config is empty."""

    candidate: Candidate
    provenance: Provenance


class TunedKernel:
    """A kernel bound to one candidate; call it with the operation's tensors.

    Attributes:
        operation: the operation's name.
        shape: the shape it was picked for; a call checks that its tensors fit.
        candidate: the implementation and config that are served.
        provenance: where the candidate comes from and why.
    """

    __slots__ = ("_calls", "_choices", "operation", "shape")

    def __init__(self, operation: str, shape: Shape, choices: Sequence[Choice]) -> None:
        self.operation = operation
        self.shape = shape
        self._choices = tuple(choices)
        self._calls: dict[Candidate, Callable[..., Any]] = {}

    @property
    def candidate(self) -> Candidate:
        return self._choices[0].candidate

    @property
    def implementation(self) -> str:
        """The name of the implementation that is served, or of the baseline."""
        return self._choices[0].candidate.implementation

    @property
    def config(self) -> Config:
        """The launch parameters."""
        return self._choices[0].candidate.config

    @property
    def provenance(self) -> Provenance:
        return self._choices[0].provenance

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """Compute; the first call loads torch and triton, and compiles unless the binary is cached.

        A candidate that this toolchain refuses to compile or launch is replaced for good, with one warning, by the next
        stored one and at last by the default. One that cannot take these tensors or options gives way for this call.
        """
        choices = self._choices
        for place, choice in enumerate(choices):
            try:
                return self._call_of(choice)(*tensors, **options)
            except Exception as error:  # not only of the first call: other strides or options are other binaries
                if place + 1 == len(choices):
                    raise
                if isinstance(error, BaselineUnavailableError):
                    continue
                if not _is_refusal(error):
                    raise
                self._drop(choice, error)
        raise AssertionError("a kernel has at least one choice")

    def _call_of(self, choice: Choice) -> Callable[..., Any]:
        call = self._calls.get(choice.candidate)
        if call is None:
            call = self._calls[choice.candidate] = _bind(self.operation, self.shape, choice)
        return call

    def _drop(self, refused: Choice, error: Exception) -> None:
        """Serve the next choice from now on, unless another thread has turned to it already."""
        global _refused
        with _lock:
            if refused not in self._choices:
                return
            self._choices = tuple(choice for choice in self._choices if choice != refused)
            _refused += 1
        warnings.warn(
            f"{self.operation}: this toolchain refuses {refused.candidate} ({type(error).__name__}); "
            f"using {self.candidate} instead, {self.provenance.reason}",
            RuntimeWarning,
            stacklevel=3,
        )

    def __repr__(self) -> str:
        return f"<{self.operation} kernel for {self.shape}: {self.candidate} ({self.provenance.rung})>"


@cache
def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def refusals() -> int:
    """Count the stored candidates that this process's toolchain has refused."""
    return _refused


def _bind(operation: str, shape: Shape, choice: Choice) -> Callable[..., Any]:
    if choice.provenance.baseline:
        return _bind_baseline(operation, shape, choice.provenance.baseline)
    return load_kernel(operation, choice.candidate.implementation).bind(choice.candidate.config, shape)


def _bind_baseline(operation: str, shape: Shape, name: str) -> Callable[..., Any]:
    """Bind a baseline by name; a call that it cannot do raises, so that the next choice takes it."""
    definition, baseline = load_definition(operation), _find_baseline(operation, name)
    reason = _why_absent(baseline, shape, name)
    if reason is not None or not isinstance(baseline, ServedBaseline) or not isinstance(definition, ServedDefinition):
        return partial(_refuse, reason or f"{name} is compared and not served")

    def call(*tensors: Any, return_lse: bool = False, **options: Any) -> Any:
        if return_lse:
            _refuse(f"{name} has no log-sum-exp")
        return baseline.serve(shape, definition.bind_inputs(shape, tensors, options))

    return call


def why_unserved(operation: str, shape: Shape, choice: Choice) -> str | None:
    """Say why the baseline of a choice cannot be served here, or return None; a choice without one always can."""
    name = choice.provenance.baseline
    return _why_absent(_find_baseline(operation, name), shape, name) if name else None


def _find_baseline(operation: str, name: str) -> Baseline | None:
    return next((each for each in load_baselines(operation) if each.name == name), None)


def _why_absent(baseline: Baseline | None, shape: Shape, name: str) -> str | None:
    if not isinstance(baseline, ServedBaseline):
        return f"{name} is compared and not served"
    return baseline.available() or baseline.unsupported(shape)


def _refuse(reason: str, *tensors: Any, **options: Any) -> NoReturn:
    raise BaselineUnavailableError(reason)


def _is_refusal(error: Exception) -> bool:
    """True if the toolchain refused the config, as opposed to a wrong call or a broken GPU."""
    if isinstance(error, AutotuneError):
        return False
    return type(error).__module__.startswith("triton") or "PassManager" in str(error)
