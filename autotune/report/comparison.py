"""A comparison in words: its columns as text, Markdown, and plain data."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from autotune.analysis.sheets import without_name
from autotune.comparison import Comparison, Entry
from autotune.report.markdown import table_lines
from autotune.report.summary import describe_rate, describe_time, is_limited_by_memory, speed_up
from autotune.space import Config, Value

MIB: Final = 2**20


class _Rate(NamedTuple):
    """A unit, the field of an entry that is told in it, and what that is multiplied with."""

    unit: str
    field: str
    factor: float = 1.0


def headers(comparison: Comparison) -> tuple[str, ...]:
    """The titles of the columns of ``cells``."""
    reference = f"{comparison.timed[0].name} is" if comparison.timed else ""
    return ("", "time (95 %)", _rate(comparison).unit, reference, "error", "extra memory")


def cells(comparison: Comparison) -> list[tuple[str, ...]]:
    """A row of text for each entry that has a time."""
    timed = comparison.timed
    rate = _rate(comparison)
    rows: list[tuple[str, ...]] = []
    for entry in timed:
        assert entry.timing is not None
        assert timed[0].timing is not None
        ratio = "" if entry is timed[0] else f"{speed_up(entry.timing, timed[0].timing)} its speed"
        name = entry.name if entry.verified_on_hardware else f"{entry.name} *"
        value = rate.factor * float(getattr(entry, rate.field))
        rows.append((name, describe_time(entry.timing), describe_rate(value), ratio, _error(entry), _memory(entry)))
    return rows


def notes(comparison: Comparison) -> list[str]:
    """What follows the table: what disturbed its times, who is not in it and why, whose code never ran on its own
    hardware."""
    lines = disturbances(comparison)
    absent = [entry for entry in comparison.entries if entry.timing is None]
    lines += [f"not compared: {entry.name}: {without_name(entry.name, entry.message)}" for entry in absent]
    unverified = [entry.name for entry in comparison.timed if not entry.verified_on_hardware]
    if unverified:
        lines.append(f"* {', '.join(unverified)}: never run on the hardware that it is written for")
    return lines


def disturbances(comparison: Comparison) -> list[str]:
    """What made the times of a race worse than they should be; nothing where nobody watched."""
    conditions = comparison.conditions
    if conditions is None:
        return []
    lines = ["contended: another process was using the GPU during the race"] if conditions.contended else []
    if conditions.throttle_reasons:
        lines.append(f"throttled: the GPU's clocks were held down ({conditions.throttle_reasons})")
    return lines


def title(comparison: Comparison) -> str:
    """The problem and where it ran; on a processor with torch's threads."""
    return f"{comparison.shape} on {place(comparison.device, comparison.threads)}"


def place(device: str, threads: int | None) -> str:
    """A device, a processor with torch's threads.

    Example:
        >>> place("AMD EPYC, 2 cores", 1)
        'AMD EPYC, 2 cores, 1 thread'
    """
    return device if threads is None else f"{device}, {threads} {'thread' if threads == 1 else 'threads'}"


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Markdown with a section and a table for each problem."""
    parts = []
    for comparison in comparisons:
        lines = [f"## {comparison.operation}: {title(comparison)}", ""]
        if comparison.config is not None:
            lines += [f"Served: `{comparison.config}` ({comparison.reason}).", ""]
        if comparison.timed:
            head = headers(comparison)
            lines += table_lines(head, cells(comparison), is_text=[index == 0 for index in range(len(head))])
        else:
            lines.append("Nothing ran here.")
        lines += ["", *(f"- {note}" for note in notes(comparison))]
        parts.append("\n".join(lines).rstrip() + "\n")
    return "\n".join(parts)


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Plain data for ``--json``; the config of the comparison is the served one, that of a row its own."""
    reference = comparison.timed[0].timing if comparison.timed else None
    rows = []
    for entry in comparison.entries:
        ratio = None if entry.timing is None or reference is None else asdict(speed_up(entry.timing, reference))
        rows.append({**asdict(entry), "config": _plain(entry.config), "ratio": ratio})
    return {
        "operation": comparison.operation,
        "shape": comparison.shape.as_dict(),
        "device": comparison.device,
        "threads": comparison.threads,
        "gpu": None if comparison.gpu is None else asdict(comparison.gpu),
        "conditions": None if comparison.conditions is None else asdict(comparison.conditions),
        "started_at": None if comparison.started_at is None else comparison.started_at.isoformat(),
        "toolchain": asdict(comparison.toolchain),
        "policy": asdict(comparison.policy),
        "config": _plain(comparison.config),
        "reason": comparison.reason,
        "rows": rows,
    }


def _plain(config: Config | None) -> dict[str, Value] | None:
    return None if config is None else dict(config)


def _rate(comparison: Comparison) -> _Rate:
    """The rate that limits the first entry; small machines have GFLOP/s."""
    first = comparison.timed[0] if comparison.timed else None
    if first is not None and is_limited_by_memory(first.tflops, first.gbps, comparison.device, comparison.shape):
        return _Rate("GB/s", "gbps")
    if comparison.timed and max(entry.tflops or 0.0 for entry in comparison.timed) < 1.0:
        return _Rate("GFLOP/s", "tflops", 1000.0)
    return _Rate("TFLOP/s", "tflops")


def _error(entry: Entry) -> str:
    return "" if entry.error is None else f"{entry.error:.1e}"


def _memory(entry: Entry) -> str:
    return "" if entry.extra_bytes is None else f"{entry.extra_bytes / MIB:.1f} MiB"
