"""Where a trial runs: on a GPU (``gpu``) or from a recorded sweep (``replay``), behind one interface."""

from dataclasses import dataclass
from typing import Any, Protocol

from autotune.device import Device
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome, Policy, Timing, Toolchain

__all__ = ["Executor", "Race"]


@dataclass(frozen=True, slots=True)
class Race:
    """Finalists measured interleaved, and the fastest baseline measured among them (empty name: none could run)."""

    outcomes: tuple[Outcome, ...]
    baseline: str = ""
    baseline_timing: Timing | None = None


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

    def collect(self) -> Outcome:
        """Wait for the next submitted config to end, in any order."""

    def race(self, configs: list[Config], *, seconds: float) -> Race:
        """Measure these configs and the baselines round-robin within a time, until intervals separate."""

    def close(self) -> None:
        """End every child process; safe to call twice."""
