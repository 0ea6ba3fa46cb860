"""A served kernel: the candidate that is called, and the ones behind it."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autotune.dispatch.declined_calls import DeclinedCalls
from autotune.dispatch.events import begin_compile, note_decline, note_refusal, noting_first_call, watch_compiles
from autotune.dispatch.provenance import Alternative, Provenance
from autotune.dispatch.served_baselines import bind_baseline
from autotune.errors import BaselineUnavailableError, UnsupportedCallError, is_toolchain_refusal
from autotune.process_lock import ProcessLock
from autotune.registry import get_implementation, load_kernel
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate

_lock: Final = ProcessLock()


class TunedKernel:
    """A kernel bound to one candidate; call it with the operation's tensors.

    Attributes:
        operation: the operation's name.
        shape: the problem that it computes; a call checks that its tensors fit.
        picked_for: the shape whose pick is served: the same, or of batch-invariant picks that in the usual batch.
        candidate: the implementation and config that are served.
        provenance: where the candidate comes from and why.
    """

    __slots__ = (
        "_alternatives",
        "_calls",
        "_declined",
        "_has_row",
        "_picked",
        "_repeats",
        "operation",
        "picked_for",
        "shape",
    )

    def __init__(
        self,
        operation: str,
        shape: Shape,
        alternatives: Sequence[Alternative],
        picked_for: Shape | None = None,
        *,
        has_row: bool = False,
    ) -> None:
        self.operation = operation
        self.shape = shape
        self.picked_for = picked_for or shape
        self._alternatives = tuple(alternatives)  # without the refused ones, from when they are
        self._picked = self._alternatives  # keeps them all alive, since `_calls` and `_declined` know them by `id`
        self._has_row = has_row
        self._calls: dict[int, Callable[..., Any]] = {}  # by the identity of an alternative, in the least time
        self._declined: DeclinedCalls | None = None  # a call that no candidate declined pays nothing for it
        self._repeats = all(each.is_deterministic(operation) for each in self._alternatives)

    @property
    def candidate(self) -> Candidate:
        return self._alternatives[0].candidate

    @property
    def implementation(self) -> str:
        """The name of the implementation that is served, or of the baseline."""
        return self._alternatives[0].candidate.implementation

    @property
    def config(self) -> Config:
        """The launch parameters."""
        return self._alternatives[0].candidate.config

    @property
    def provenance(self) -> Provenance:
        found, declined = self._alternatives[0].provenance, self._declined
        return found if declined is None else replace(found, declined=declined.reasons)

    @property
    def is_untuned(self) -> bool:
        """Return True if a default is served and no stored row, of this shape or near it, may be.

        A row that a batch-invariant pick passes over counts: to tune the shape again would not change what is served.
        """
        return not self._has_row and all(each.provenance.rung == "default" for each in self._alternatives)

    @property
    def last_resort(self) -> Provenance:
        """The provenance of the candidate that is left when all others are refused."""
        return self._alternatives[-1].provenance

    def _allowed(self) -> tuple[Alternative, ...]:
        """Return the candidates that torch's deterministic mode leaves."""
        import torch

        if not torch.are_deterministic_algorithms_enabled():
            return self._alternatives
        allowed = tuple(each for each in self._alternatives if each.is_deterministic(self.operation))
        if not allowed:
            raise UnsupportedCallError(
                f"{self.operation}: no candidate is deterministic, and torch.use_deterministic_algorithms(True) is set"
            )
        return allowed

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """Compute; the first call loads torch and triton, and compiles unless the binary is cached.

        Of the candidates that may be served, the stored ones and at last the default, the first that can takes the
        call. One that raises ``UnsupportedCallError`` gives way for calls of this signature (types, sizes, strides,
        the alignment of addresses, devices and options), a baseline for this call alone, and under
        ``torch.use_deterministic_algorithms(True)`` one whose runs may differ. One that this toolchain refuses to
        compile or launch (``autotune.errors.is_toolchain_refusal``) gives way for good, with a warning. Any other
        exception is the caller's, and so is that of the last candidate.
        """
        alternatives = self._alternatives if self._repeats else self._allowed()
        if self._declined is not None and (declined := self._declined.of(tensors, options)):
            alternatives = tuple(each for each in alternatives if id(each) not in declined) or alternatives
        for each in alternatives:
            try:
                call = self._calls.get(id(each))
                return (self._bind(each) if call is None else call)(*tensors, **options)
            except UnsupportedCallError as error:
                if each is alternatives[-1]:
                    raise
                if not isinstance(error, BaselineUnavailableError):  # which may hang on more than the signature
                    self._decline(alternatives[alternatives.index(each) :], error, tensors, options)
            except Exception as error:  # not only of the first call: other strides or options are other binaries
                if each is alternatives[-1] or not is_toolchain_refusal(error):
                    raise
                self._drop(each, error)
        raise AssertionError("no candidate is left")  # the last always is

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The candidates that may be served, best first: each gives way to the next."""
        return self._alternatives

    def warm(self, *, every_output: bool = False) -> int:
        """Bind, compile and load ahead what a call will launch on the current GPU; return the number of binaries.

        A candidate that the toolchain refuses gives way for good, as in a call. Of one that only its first call can
        compile (``Implementation.compiles_ahead``), and of a baseline, there is none. A binary is for the layouts that
        operations make (``Kernel.warmup``); other strides or addresses may need another at their first call.

        Args:
            every_output: also compile for calls that ask for every output, such as the log-sum-exp.
        """
        *others, last = self._alternatives
        for each in others:
            try:
                return self._warm(each, every_output)
            except Exception as error:
                if not is_toolchain_refusal(error):
                    raise
                self._drop(each, error)
        return self._warm(last, every_output)

    def _warm(self, alternative: Alternative, every_output: bool) -> int:
        candidate, is_baseline = alternative.candidate, bool(alternative.provenance.baseline)
        if is_baseline or not get_implementation(self.operation, candidate.implementation).compiles_ahead:
            return 0
        self._call_of(alternative)
        kernel = load_kernel(self.operation, candidate.implementation)
        binaries = list(kernel.warmup(candidate.config, self.shape))
        if every_output:
            binaries += kernel.warmup(candidate.config, self.shape, every_output=True)
        return load_binaries(binaries)

    def _call_of(self, alternative: Alternative) -> Callable[..., Any]:
        call = self._calls.get(id(alternative))
        return self._bind(alternative) if call is None else call

    def _bind(self, alternative: Alternative) -> Callable[..., Any]:
        """Bind a candidate for all calls; return what makes the first of them, whose compiles are noted."""
        candidate = alternative.candidate
        if name := alternative.provenance.baseline:
            call = self._calls[id(alternative)] = bind_baseline(self.operation, self.shape, name)
            return call
        implementation = get_implementation(self.operation, candidate.implementation)
        if not implementation.compiles_ahead:
            begin_compile(implementation.title)
        kernel = load_kernel(self.operation, candidate.implementation)
        call = self._calls[id(alternative)] = kernel.bind(candidate.config, self.shape)
        if not implementation.compiles_ahead:
            return noting_first_call(implementation.title, call)
        watch_compiles(implementation.module)
        return call

    def _decline(
        self, left: Sequence[Alternative], error: Exception, tensors: Sequence[Any], options: Mapping[str, Any]
    ) -> None:
        """Let the second candidate that is left take calls like this one from now on, which the first cannot."""
        by, following = left[:2]
        why = f"served {following.candidate} instead of {by.candidate}, because {error}"
        with _lock:
            if self._declined is None:
                self._declined = DeclinedCalls()
            is_new = self._declined.add(id(by), tensors, options, why)
        if is_new:
            note_decline(self.operation, self.shape, why)

    def give_way(self, error: Exception, candidate: Candidate) -> bool:
        """Serve the next candidate from now on, if the toolchain refused this one; return False if it is to be raised.

        For a caller that launches the candidate itself. One that another thread has turned from already is not served
        any more, and nothing else is dropped for it.
        """
        if not is_toolchain_refusal(error):
            return False
        refused = next((each for each in self._alternatives if each.candidate == candidate), None)
        if refused is None:
            return True
        if len(self._alternatives) == 1:
            return False
        self._drop(refused, error)
        return True

    def _drop(self, refused: Alternative, error: Exception) -> None:
        """Serve the next candidate from now on, unless another thread has turned to it already."""
        with _lock:
            if refused not in self._alternatives:
                return
            self._alternatives = tuple(each for each in self._alternatives if each != refused)
        note_refusal(self.operation, refused.candidate, self.candidate, error)
        warnings.warn(
            f"{self.operation}: this toolchain refuses {refused.candidate} ({type(error).__name__}); "
            f"using {self.candidate} instead, {self.provenance.reason}",
            RuntimeWarning,
            stacklevel=3,
        )

    def __repr__(self) -> str:
        return f"<{self.operation} kernel for {self.shape}: {self.candidate} ({self.provenance.rung})>"


def load_binaries(binaries: Sequence[Any]) -> int:
    """Load compiled kernels onto the current GPU, as their first launches would; return how many there are."""
    for binary in binaries:
        getattr(binary, "run", None)  # of Triton's a property, which loads it
    return len({id(binary) for binary in binaries})
