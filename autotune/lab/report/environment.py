"""The origin of the trials: devices, toolchains, sources and dates."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TypeVar

from autotune import sheets
from autotune.device import Device
from autotune.lab.drawing.markup import Html, join, table
from autotune.lab.report.screening import grouped
from autotune.registry import get_implementation
from autotune.sheets import Sheet
from autotune.table import Outsider
from autotune.trial import Toolchain, Trial
from autotune.units import span_text

RowT = TypeVar("RowT")
KeyT = TypeVar("KeyT", bound=Hashable)
Source = tuple[str, str, str]  # an operation, an implementation and the hash of its source


def environment_section(trials: Sequence[Trial], outsiders: Sequence[Outsider]) -> Html:
    """Return tables of the devices, toolchains and implementations, each with its rows, and of rows that are not of
    today's spaces."""
    versions = [field.name for field in fields(Toolchain)]
    return join(
        _table(
            "Devices",
            ("device", "architecture", "SMs", "memory", "power cap", "SM clock", "temperature"),
            *(trials, lambda trial: trial.device, _device_cells),
        ),
        _table(
            "Toolchains",
            ["autotune" if name == "tool" else name for name in versions],
            *(trials, lambda trial: trial.toolchain, lambda used, _: [getattr(used, name) or "-" for name in versions]),
        ),
        _table(
            "Implementations and their sources",
            ("implementation", "source", "is", "timing", "workers", "first", "last"),
            *(trials, lambda trial: (trial.operation, trial.implementation, trial.source_hash), _source_cells),
        ),
        _table(
            "Rows that are not of today's spaces",
            ("implementation", "device", "reason"),
            outsiders,
            lambda row: (f"{row.operation}/{row.implementation}", row.device.name, row.reason),
            lambda key, _: key,
        )
        if outsiders
        else None,
    )


def _table(
    title: str,
    names: Iterable[str],
    rows: Iterable[RowT],
    key: Callable[[RowT], KeyT],
    cells: Callable[[KeyT, Sequence[RowT]], Iterable[str]],
) -> Html:
    """Return a table of the groups of rows by a key, most frequent first: the cells of each, and the number of rows."""
    groups = sorted(grouped(rows, key).items(), key=lambda item: (-len(item[1]), repr(item[0])))
    columns = (*map(sheets.text, names), sheets.number("rows"))
    return table(Sheet(title, columns, tuple((*cells(value, own), len(own)) for value, own in groups)))


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
