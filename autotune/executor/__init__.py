"""Executors run trials: on a GPU (``gpu``) or from a recorded sweep (``replay``), behind one interface."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from autotune.device import Device
from autotune.errors import UnusableGpuError
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.trial import Candidate, Outcome, Policy, Timing, Toolchain

__all__ = ["BaselineResult", "Baselines", "Choice", "DisturbedRaceError", "Executor", "Race", "is_comparison"]


# The baselines that take part in a race: none, the fastest of the usual ones, every one, or those of these names.
Choice = Literal["none", "fastest", "every"]
Baselines = Choice | list[str] | tuple[str, ...] | Set[str] | Mapping[str, object]


def is_comparison(baselines: Baselines) -> bool:
    """Return True if a race with these compares systems, rather than ending a search with the fastest usual one.

    Then memory is measured too, and the seconds of the race begin once all in it are ready.

    Example:
        >>> is_comparison(["naive"]), is_comparison("fastest")
        (True, False)
    """
    return baselines not in ("none", "fastest")


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """A baseline that was compared: its time, or why it has none.

    ``error`` is its largest absolute one against the fp64 reference, ``error_limit`` the one that our configs may have;
    ``extra_bytes`` is the most memory that a call holds beside its inputs and its result, with what is kept for it
    between calls.
    """

    name: str
    timing: Timing | None = None
    message: str = ""
    error: float | None = None
    error_limit: float | None = None
    extra_bytes: int | None = None
    verified_on_hardware: bool = True


@dataclass(frozen=True, slots=True)
class Race:
    """Finalists and baselines measured interleaved, round-robin."""

    outcomes: tuple[Outcome, ...]
    baselines: tuple[BaselineResult, ...] = ()
    extra_bytes: tuple[int | None, ...] = ()  # of each outcome, as a baseline's; empty if not measured

    @property
    def fastest_baseline(self) -> BaselineResult:
        """The baseline with the least median; one without name and time if none could run."""
        timed = [baseline for baseline in self.baselines if baseline.timing is not None]
        return min(timed, key=lambda baseline: baseline.timing.median_us, default=BaselineResult(""))  # type: ignore[union-attr]


class DisturbedRaceError(UnusableGpuError):
    """A race has ended, and with it the trust in its GPU's times; others do its work, and its rows are worth keeping.

    Attributes:
        race: as it was measured, in its disturbed conditions.
    """

    def __init__(self, message: str, race: Race) -> None:
        super().__init__(message)
        self.race = race


class Executor(Protocol):
    """Answers what a candidate does on a device. Bad candidates are outcomes, never exceptions.

    A search opens one problem at a time, for all implementations of its operation, keeps up to ``capacity`` candidates
    submitted, and collects them as they end. It may be used from any thread, by one at a time.
    """

    @property
    def name(self) -> str:
        """``gpu`` or ``replay``: a column of every row."""

    @property
    def device(self) -> Device: ...

    @property
    def toolchain(self) -> Toolchain: ...

    def toolchain_of(self, implementation: str) -> Toolchain:
        """Return what rows of an implementation carry: in a replay, the toolchain that its sweep was recorded with."""

    @property
    def policy(self) -> Policy: ...

    @property
    def capacity(self) -> int:
        """The most candidates that may be in flight, where implementations compile ahead; else one is enough."""

    @property
    def worker(self) -> str:
        """The host and the process that measure, for the row."""

    @property
    def reached(self) -> Mapping[str, float]:
        """``time.monotonic()`` at each step of its start that was reached, in order; empty where nothing starts."""

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        """Turn to another problem; what was submitted and not collected is dropped."""

    def submit(self, candidate: Candidate) -> None:
        """Queue a valid candidate for compile, check and screening; returns at once."""

    def collect(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the next submitted candidate to end, in any order; None if none did in that many seconds.

        What did not end stays in flight.

        Raises:
            MissingDependencyError: this machine cannot compile or measure, whatever the candidate.
        """

    def expect_problem(
        self, operation: Operation[Any], shape: Shape, candidates: Sequence[Candidate], *, every_output: bool = False
    ) -> None:
        """Note what a later problem begins with, so that it is compiled meanwhile; returns at once.

        Only compilers are spent on it that nothing else needs, and no outcome comes of it.
        """

    def expect_race(self, candidates: Sequence[Candidate], *, is_near: bool) -> None:
        """Note the finalists as they stand, so that what their race needs is compiled meanwhile; returns at once.

        While the race is not near, only what no candidate in flight needs is spent on it. No outcome comes of it.
        """

    def race(self, candidates: list[Candidate], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        """Measure these candidates and baselines round-robin, until intervals separate or the seconds end.

        A least number of rounds is run whatever the seconds. These begin with the request; in a comparison
        (``is_comparison``) once all are checked, compiled and planned. What was submitted and not collected is dropped,
        so that nothing disturbs the measurement. A candidate takes part once all its outputs are right on the full
        shape. One that fails, or takes its worker along, is an outcome like any other, and the rest are raced.

        Raises:
            DisturbedRaceError: of several GPUs this one is not to be used any more; the error has the race.
        """

    def close(self) -> None:
        """End every child process; safe to call twice."""
