"""A comparison as data."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autotune.device import Device
from autotune.executor import BaselineResult
from autotune.operation import Operation
from autotune.roofline import rates
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Conditions, Policy, Timing, Toolchain


@dataclass(frozen=True, slots=True)
class Entry:
    """One system in a comparison, or why it is not in it.

    ``error`` is its largest absolute one against the fp64 reference and ``error_limit`` what a config of ours may have;
    ``extra_bytes`` is the most memory a call holds beside inputs and result, with what is kept for it between calls.
    Both may be unknown. ``config`` is that of a kernel of ours, None for all others.
    """

    name: str
    timing: Timing | None = None
    tflops: float | None = None
    gbps: float | None = None
    error: float | None = None
    error_limit: float | None = None
    extra_bytes: int | None = None
    message: str = ""
    verified_on_hardware: bool = True
    config: Config | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One problem and its entries; the first that has a time is what the others are compared with.

    ``config`` and ``reason`` are those of the kernel that is served; None and empty where ours cannot run. ``device``
    is the name of a GPU or processor, ``gpu`` what tables identify the GPU by, and ``conditions`` its state during the
    race; both are None on a processor. ``started_at``, when the race began, has its time zone. ``threads`` are torch's
    on a processor, None on a GPU.
    """

    operation: str
    shape: Shape
    device: str
    toolchain: Toolchain
    policy: Policy
    config: Config | None
    reason: str
    entries: tuple[Entry, ...]
    gpu: Device | None = None
    conditions: Conditions | None = None
    started_at: datetime | None = None
    threads: int | None = None

    @property
    def timed(self) -> tuple[Entry, ...]:
        """The entries that have a time."""
        return tuple(entry for entry in self.entries if entry.timing is not None)

    @property
    def served(self) -> Entry | None:
        """The entry of the kernel that is served; None where ours cannot run."""
        return next((entry for entry in self.entries if entry.config is not None and entry.config == self.config), None)


def make_entry(operation: Operation[Any], shape: Shape, result: BaselineResult, config: Config | None = None) -> Entry:
    """An entry with the rates that its time means for the operation's cost; ``config`` where it is ours."""
    tflops, gbps = (None, None) if result.timing is None else rates(operation.cost(shape), result.timing.median_us)
    return Entry(
        result.name,
        result.timing,
        tflops,
        gbps,
        result.error,
        result.error_limit,
        result.extra_bytes,
        result.message,
        result.verified_on_hardware,
        config,
    )
