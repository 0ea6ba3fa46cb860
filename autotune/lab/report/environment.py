"""The origin of the trials: devices, toolchains, sources and dates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from autotune import sheets
from autotune.lab.drawing.markup import Html, join, table
from autotune.registry import get_implementation
from autotune.sheets import Sheet
from autotune.table import Outsider
from autotune.trial import Toolchain, Trial

RowT = TypeVar("RowT")


def environment_section(trials: Sequence[Trial], outsiders: Sequence[Outsider]) -> Html:
    """Return a table of the devices, one of the toolchains and one of the implementations, each with its rows;
    and of the rows that are not of today's spaces."""
    listed = table(_outsiders(outsiders)) if outsiders else None
    return join(table(_devices(trials)), table(_toolchains(trials)), table(_implementations(trials)), listed)


def _devices(trials: Sequence[Trial]) -> Sheet:
    names = ("device", "architecture", "SMs", "memory", "power cap", "SM clock", "temperature")
    rows = []
    for device, found in _by(trials, lambda trial: trial.device):
        conditions = [trial.outcome.conditions for trial in found]
        cap = device.power_cap_watts
        row = (
            *(device.name, device.arch, f"{device.sm_count}", f"{device.memory_mib:,} MiB"),
            *("not read" if cap is None else f"{cap} W", _range([each.sm_clock_mhz for each in conditions], "MHz")),
            *(_range([each.temperature_c for each in conditions], "°C"), len(found)),
        )
        rows.append(row)
    return Sheet("Devices", (*map(sheets.text, names), sheets.number("rows")), tuple(rows))


def _toolchains(trials: Sequence[Trial]) -> Sheet:
    names = [field.name for field in fields(Toolchain)]
    columns = [sheets.text("autotune" if name == "tool" else name) for name in names]
    found = _by(trials, lambda trial: trial.toolchain)
    rows = tuple((*(getattr(toolchain, name) or "-" for name in names), len(own)) for toolchain, own in found)
    return Sheet("Toolchains", (*columns, sheets.number("rows")), rows)


def _implementations(trials: Sequence[Trial]) -> Sheet:
    names = ("implementation", "source", "is", "timing", "workers", "first", "last")
    rows = []
    for (operation, name, source), found in _by(trials, _source):
        implementation = get_implementation(operation, name)
        dates = [trial.started_at for trial in found]
        policies = sorted({f"{trial.policy.mode} {trial.policy.cache}, {trial.executor}" for trial in found})
        is_here = source == implementation.source_hash
        row = (
            *(
                implementation.title,
                source[:12],
                "installed here" if is_here else "not what is installed here",
                "; ".join(policies),
            ),
            f"{len({trial.worker for trial in found})}",
            *(f"{date:%Y-%m-%d %H:%M} UTC" for date in (min(dates), max(dates))),
            len(found),
        )
        rows.append(row)
    return Sheet("Implementations and their sources", (*map(sheets.text, names), sheets.number("rows")), tuple(rows))


def _source(trial: Trial) -> tuple[str, str, str]:
    return trial.operation, trial.implementation, trial.source_hash


def _outsiders(outsiders: Sequence[Outsider]) -> Sheet:
    names = ("implementation", "device", "reason")
    found = _by(outsiders, lambda row: (f"{row.operation}/{row.implementation}", row.device.name, row.reason))
    columns = (*map(sheets.text, names), sheets.number("rows"))
    return Sheet("Rows that are not of today's spaces", columns, tuple((*key, len(rows)) for key, rows in found))


def _by(rows: Iterable[RowT], key: Callable[[RowT], Any]) -> list[tuple[Any, list[RowT]]]:
    """Group rows by a key, most frequent first."""
    groups: dict[Any, list[RowT]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), repr(item[0])))


def _range(values: Iterable[int | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "not read"
    low, high = min(known), max(known)
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
