"""A comparison of systems: its dataclasses, its table and its plain data."""

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Final

from autotune import sheets, units
from autotune.console.winners import Ratio, is_limited_by_memory, speed_up
from autotune.device import Device
from autotune.executor import BaselineResult
from autotune.lab.absent import without_name
from autotune.operation import Operation
from autotune.roofline import rates
from autotune.shape import Shape
from autotune.sheets import Column, Sheet
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


def comparison_sheet(comparison: Comparison, *, name: str = "") -> Sheet:
    """Lay out a comparison, ``name`` in its title: timed entries, what was served, disturbances, absent entries."""
    title = f"{name}{': ' if name else ''}{comparison.shape} on {place(comparison.device, comparison.threads)}"
    if not comparison.timed:
        return Sheet(title, notes=tuple(_notes(comparison)))
    first = comparison.timed[0]
    in_bytes = is_limited_by_memory(first.tflops, first.gbps, comparison.device, comparison.operation, comparison.shape)
    columns = (
        sheets.text(""),
        sheets.timing("time (95 %)"),
        sheets.gbps() if in_bytes else sheets.tflops(),
        Column(f"{first.name} is"),
        sheets.number("error", ".1e"),
        sheets.mib("extra memory"),
    )
    rows = tuple(
        (
            entry.name if entry.verified_on_hardware else f"{entry.name} *",
            entry.timing,
            entry.gbps if in_bytes else entry.tflops,
            "" if entry is first else f"{_ratio(entry, comparison)} its speed",
            entry.error,
            entry.extra_bytes,
        )
        for entry in comparison.timed
    )
    return Sheet(title, columns, rows, tuple(_notes(comparison)))


def place(device: str, threads: int | None) -> str:
    """Name a device, a processor with torch's threads.

    Example:
        >>> place("AMD EPYC, 2 cores", 1)
        'AMD EPYC, 2 cores, 1 thread'
    """
    return device if threads is None else f"{device}, {units.count_text(threads, 'thread')}"


def disturbances(conditions: Conditions | None) -> list[str]:
    """Return lines on what slowed a race down; none where the device was not watched."""
    if conditions is None:
        return []
    lines = ["contended: another process was using the GPU during the race"] if conditions.contended else []
    if conditions.throttle_reasons:
        lines.append(f"throttled: the GPU's clocks were held down ({conditions.throttle_reasons})")
    return lines


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Return plain data for JSON and Parquet; its implementation and config are the served ones, a row has its own."""
    rows = []
    for entry in comparison.entries:
        row = {**asdict(entry), **_candidate(entry), "ratio": _data(_ratio(entry, comparison))}
        del row["candidate"]
        rows.append(row)
    return {
        "operation": comparison.operation,
        "shape": comparison.shape.as_dict(),
        "device": comparison.device,
        "threads": comparison.threads,
        "gpu": _data(comparison.gpu),
        "conditions": _data(comparison.conditions),
        "started_at": comparison.started_at and comparison.started_at.isoformat(),
        "toolchain": asdict(comparison.toolchain),
        "policy": asdict(comparison.policy),
        **_candidate(comparison.served),
        "reason": comparison.reason,
        "rows": rows,
    }


def _notes(comparison: Comparison) -> list[str]:
    """Return lines on what was served, disturbances, absent entries, and systems whose hardware was never at hand."""
    served = comparison.served
    lines = [] if served is None else [f"served: {served.candidate} ({comparison.reason})"]
    lines += disturbances(comparison.conditions)
    absent = [entry for entry in comparison.entries if entry.timing is None]
    lines += [f"not compared: {entry.name}: {without_name(entry.name, entry.message)}" for entry in absent]
    unverified = [entry.name for entry in comparison.timed if not entry.verified_on_hardware]
    if unverified:
        lines.append(f"* {', '.join(unverified)}: never run on the hardware that it is written for")
    return lines


def _ratio(entry: Entry, comparison: Comparison) -> Ratio | None:
    """Return the speed of the first timed entry over that of another; None where one has no time."""
    first = comparison.timed[0].timing if comparison.timed else None
    return None if entry.timing is None or first is None else speed_up(entry.timing, first)


def _candidate(entry: Entry | None) -> dict[str, Any]:
    if entry is None or entry.candidate is None:
        return {"implementation": None, "config": None}
    return {"implementation": entry.candidate.implementation, "config": dict(entry.candidate.config)}


def _data(value: Any) -> dict[str, Any] | None:
    return None if value is None else asdict(value)
