"""Where a trial runs: on a GPU (``gpu``) or from a recorded sweep (``replay``), behind one interface."""

from dataclasses import dataclass
from typing import Any, Protocol

from autotune.device import Device
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome, Policy, Timing, Toolchain

__all__ = ["Baseline", "Executor", "Race"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """An implementation that was compared: its time, or why it has none."""

    name: str
    timing: Timing | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Race:
    """Finalists and baselines measured interleaved, round-robin."""

    outcomes: tuple[Outcome, ...]
    baselines: tuple[Baseline, ...] = ()

    @property
    def fastest_baseline(self) -> Baseline:
        """The baseline with the least median; one without name and time where none could run."""
        timed = [baseline for baseline in self.baselines if baseline.timing is not None]
        return min(timed, key=lambda baseline: baseline.timing.median_us, default=Baseline(""))  # type: ignore[union-attr]


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

    def race(self, configs: list[Config], *, seconds: float, every_baseline: bool = False) -> Race:
        """Measure these configs and the fastest baseline (or every one) round-robin, until intervals separate.

        What was submitted and not collected is dropped, so that nothing disturbs the measurement. A config that takes
        its worker along is an outcome like any other, and the rest are raced without it.
        """

    def close(self) -> None:
        """End every child process; safe to call twice."""
