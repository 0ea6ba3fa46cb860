"""A comparison as data."""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from autotune.device import Device
from autotune.executor import BaselineResult
from autotune.operation import Operation
from autotune.roofline import rates
from autotune.shape import Shape
from autotune.trial import Candidate, Conditions, Policy, Timing, Toolchain

OURS: Final = "autotune"  # the name of the served kernel in races, analyses and tables
DEFAULT: Final = "autotune default"


@dataclass(frozen=True, slots=True)
class Entry:
    """One system in a comparison; without a time its message says why.

    Attributes:
        error: its largest absolute error against the fp64 reference, None if unknown.
        error_limit: the error that a config of ours may have.
        extra_bytes: the most memory that a call holds beside inputs and result, including what is kept between calls.
        candidate: the implementation and config of a kernel that is tuned, None for every other system.
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
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One shape and its entries; the first with a time is what the others are compared with.

    Attributes:
        device: the name of a GPU or a processor.
        reason: why the served candidate was picked; empty where nothing of ours runs.
        gpu: what tables identify the GPU by, None on a processor.
        conditions: the GPU's state during the race, None on a processor.
        started_at: the start of the race, with its time zone.
        threads: torch's threads on a processor, None on a GPU.
    """

    operation: str
    shape: Shape
    device: str
    toolchain: Toolchain
    policy: Policy
    entries: tuple[Entry, ...]
    reason: str = ""
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
        """The entry of the served kernel, which stands before the default; None where nothing of ours runs."""
        return next((entry for entry in self.entries if entry.candidate is not None), None)


def make_entry(
    operation: Operation[Any], shape: Shape, result: BaselineResult, candidate: Candidate | None = None
) -> Entry:
    """Make an entry, with the rates that its time means for the operation's cost; ``candidate`` is given for ours."""
    tflops, gbps = (None, None) if result.timing is None else rates(operation.cost(shape), result.timing.median_us)
    known = {field.name: getattr(result, field.name) for field in fields(result)}
    return Entry(**known, tflops=tflops, gbps=gbps, candidate=candidate)
