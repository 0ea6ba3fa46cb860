"""Where a trial runs: on a GPU (``gpu``) or from a recorded sweep (``replay``), behind one interface."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from autotune.device import Device
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome, Policy, Timing, Toolchain

__all__ = ["BaselineResult", "Baselines", "Choice", "Executor", "Names", "Race", "is_comparison"]


class Names(Protocol):
    """Any collection of names but a bare text, which is one of letters: its ``in`` takes no other object."""

    def __contains__(self, name: object, /) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...


# Which baselines take part in a race: none, the fastest of the usual ones, every one, or those of these names.
Choice = Literal["none", "fastest", "every"]
Baselines = Choice | Names


def is_comparison(baselines: Baselines) -> bool:
    """Whether a race with these compares systems, and does not end a search with the fastest of the usual ones beside.

    Then memory is measured too, and the seconds of the race begin once all in it are ready.

    Example:
        >>> is_comparison(["naive"]), is_comparison("fastest")
        (True, False)
    """
    return baselines not in ("none", "fastest")


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """An implementation that was compared: its time, or why it has none.

    ``error`` is its largest absolute one against the fp64 reference, ``error_limit`` what a config of ours may have;
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
    extra_bytes: tuple[int | None, ...] = ()  # of each config, as a baseline's; empty where it was not measured

    @property
    def fastest_baseline(self) -> BaselineResult:
        """The baseline with the least median; one without name and time where none could run."""
        timed = [baseline for baseline in self.baselines if baseline.timing is not None]
        return min(timed, key=lambda baseline: baseline.timing.median_us, default=BaselineResult(""))  # type: ignore[union-attr]


class Executor(Protocol):
    """Answers what a config does on a device. Bad configs are outcomes, never exceptions.

    A search opens one problem at a time, keeps up to ``capacity`` configs submitted, and collects them as they end.
    """

    @property
    def name(self) -> str:
        """``gpu`` or ``replay``: a column of every row."""

    @property
    def device(self) -> Device: ...

    @property
    def toolchain(self) -> Toolchain: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def capacity(self) -> int:
        """How many configs may be in flight: 1 unless something compiles ahead."""

    @property
    def worker(self) -> str:
        """Who measures: host and process, for the row."""

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        """Turn to another problem; what was submitted and not collected is dropped."""

    def submit(self, config: Config) -> None:
        """Queue a valid config for compile, check and screening; returns at once."""

    def collect(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the next submitted config to end, in any order; None if none did in that many seconds.

        What did not end stays in flight.
        """

    def race(self, configs: list[Config], *, seconds: float, baselines: Baselines = "fastest") -> Race:
        """Measure these configs and baselines round-robin, until intervals separate or the seconds end.

        A least number of rounds is run whatever the seconds (``timing.race``). These begin with the request; in a
        comparison (``is_comparison``) once all are checked, compiled and planned. What was submitted and not collected
        is dropped, so that nothing disturbs the measurement. A config that takes its worker along is an outcome like
        any other, and the rest are raced without it.
        """

    def close(self) -> None:
        """End every child process; safe to call twice."""
