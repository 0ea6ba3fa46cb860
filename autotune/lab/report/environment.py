"""The origin of the trials: devices, toolchains, sources and dates."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Final, TypeVar

from autotune import sheets
from autotune.device import Device
from autotune.lab.drawing.markup import Html, join, table
from autotune.lab.report.screening import grouped, span_text
from autotune.registry import get_implementation
from autotune.sheets import Sheet
from autotune.table import Outsider
from autotune.trial import Toolchain, Trial

RowT = TypeVar("RowT")
KeyT = TypeVar("KeyT", bound=Hashable)
DEVICE_COLUMNS: Final = ("device", "architecture", "SMs", "memory", "power cap", "SM clock", "temperature")
SOURCE_COLUMNS: Final = ("implementation", "source", "is", "timing", "workers", "first", "last")
OUTSIDER_COLUMNS: Final = ("implementation", "device", "reason")
Source = tuple[str, str, str]  # an operation, an implementation and the hash of its source


def environment_section(trials: Sequence[Trial], outsiders: Sequence[Outsider]) -> Html:
    """Return tables of the devices, toolchains and implementations, each with its rows, and of rows that are not of
    today's spaces."""
    devices = grouped(trials, lambda trial: trial.device)
    toolchains = grouped(trials, lambda trial: trial.toolchain)
    sources = grouped(trials, lambda trial: (trial.operation, trial.implementation, trial.source_hash))
    reasons = grouped(outsiders, lambda row: (f"{row.operation}/{row.implementation}", row.device.name, row.reason))
    names = [field.name for field in fields(Toolchain)]
    columns = ["autotune" if name == "tool" else name for name in names]
    foreign = "Rows that are not of today's spaces"
    return join(
        _table("Devices", DEVICE_COLUMNS, devices, _device_cells),
        _table("Toolchains", columns, toolchains, lambda used, _: [getattr(used, name) or "-" for name in names]),
        _table("Implementations and their sources", SOURCE_COLUMNS, sources, _source_cells),
        _table(foreign, OUTSIDER_COLUMNS, reasons, lambda key, _: key) if reasons else None,
    )


def _table(
    title: str,
    names: Iterable[str],
    groups: Mapping[KeyT, Sequence[RowT]],
    cells: Callable[[KeyT, Sequence[RowT]], Iterable[str]],
) -> Html:
    """Return a table of groups, most frequent first: the cells of each, and the number of its rows."""
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), repr(item[0])))
    columns = (*map(sheets.text, names), sheets.number("rows"))
    return table(Sheet(title, columns, tuple((*cells(key, rows), len(rows)) for key, rows in ordered)))


def _device_cells(device: Device, trials: Sequence[Trial]) -> Iterator[str]:
    conditions = [trial.outcome.conditions for trial in trials]
    yield from (device.name, device.arch, f"{device.sm_count}", f"{device.memory_mib:,} MiB")
    yield _range([device.power_cap_watts], "W")
    yield _range([each.sm_clock_mhz for each in conditions], "MHz")
    yield _range([each.temperature_c for each in conditions], "°C")


def _source_cells(source: Source, trials: Sequence[Trial]) -> Iterator[str]:
    operation, name, source_hash = source
    implementation = get_implementation(operation, name)
    yield from (implementation.title, source_hash[:12])
    yield "installed here" if source_hash == implementation.source_hash else "not what is installed here"
    yield "; ".join(sorted({f"{trial.policy.mode} {trial.policy.cache}, {trial.executor}" for trial in trials}))
    yield f"{len({trial.worker for trial in trials})}"
    yield from (f"{date(trial.started_at for trial in trials):%Y-%m-%d %H:%M} UTC" for date in (min, max))


def _range(values: Iterable[int | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    return f"{span_text(known)} {unit}" if known else "not read"
