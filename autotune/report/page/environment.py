"""Where and when the trials were made: devices, toolchains, sources and dates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from autotune.registry import get_operation
from autotune.report.page.markup import Child, Html, join, table
from autotune.trial import Toolchain, Trial


def environment_section(trials: Sequence[Trial]) -> Html:
    """A table of the devices, one of the toolchains and one of the operations, each with its rows."""
    return join(_devices(trials), _toolchains(trials), _operations(trials))


def _devices(trials: Sequence[Trial]) -> Html:
    head: list[Child] = ["device", "architecture", "SMs", "memory", "power cap", "SM clock", "temperature", "rows"]
    rows: list[list[Child]] = []
    for device, found in _by(trials, lambda trial: trial.device):
        conditions = [trial.outcome.conditions for trial in found]
        cap = device.power_cap_watts
        rows.append(
            [
                device.name,
                device.arch,
                f"{device.sm_count}",
                f"{device.memory_mib:,} MiB",
                "not read" if cap is None else f"{cap} W",
                _range([each.sm_clock_mhz for each in conditions], "MHz"),
                _range([each.temperature_c for each in conditions], "°C"),
                f"{len(found):,}",
            ]
        )
    return table(head, rows, numbers=frozenset({7}), caption="Devices")


def _toolchains(trials: Sequence[Trial]) -> Html:
    names = [field.name for field in fields(Toolchain)]
    head: list[Child] = ["autotune" if name == "tool" else name for name in names]
    rows: list[list[Child]] = []
    for toolchain, found in _by(trials, lambda trial: trial.toolchain):
        rows.append([*(getattr(toolchain, name) or "-" for name in names), f"{len(found):,}"])
    return table([*head, "rows"], rows, numbers=frozenset({len(names)}), caption="Toolchains")


def _operations(trials: Sequence[Trial]) -> Html:
    head: list[Child] = ["operation", "source", "is", "timing", "workers", "first", "last", "rows"]
    rows: list[list[Child]] = []
    for (name, source), found in _by(trials, lambda trial: (trial.operation, trial.source_hash)):
        dates = [trial.started_at for trial in found]
        policies = sorted({f"{trial.policy.mode} {trial.policy.cache}, {trial.executor}" for trial in found})
        rows.append(
            [
                name,
                source[:12],
                "installed here" if source == get_operation(name).source_hash else "not what is installed here",
                "; ".join(policies),
                f"{len({trial.worker for trial in found})}",
                f"{min(dates):%Y-%m-%d %H:%M} UTC",
                f"{max(dates):%Y-%m-%d %H:%M} UTC",
                f"{len(found):,}",
            ]
        )
    return table(head, rows, numbers=frozenset({7}), caption="Operations and their sources")


def _by(trials: Iterable[Trial], key: Callable[[Trial], Any]) -> list[tuple[Any, list[Trial]]]:
    """Trials by something they share, most frequent first."""
    groups: dict[Any, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), repr(item[0])))


def _range(values: Iterable[int | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "not read"
    low, high = min(known), max(known)
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
