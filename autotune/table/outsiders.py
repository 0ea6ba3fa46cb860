"""Rows that are not of today's space: kept and listed with the reason, never served."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from autotune.device import Device
from autotune.table.schema import DEFAULT_PREFIX, FIXED_COLUMNS
from autotune.trial import Trial


@dataclass(frozen=True, slots=True)
class Outsider:
    """A sound row whose shape, config or implementation does not exist here.

    ``where`` names its file, ``row`` counts from 0, ``columns`` has all plain values of the row.
    """

    where: str
    row: int
    operation: str
    implementation: str
    device: Device
    reason: str
    columns: Mapping[str, Any]

    @property
    def median_us(self) -> float | None:
        median: float | None = self.columns["median_us"]
        return median

    @property
    def problem(self) -> dict[str, Any]:
        """The columns of the shape and the config."""
        fixed = {column.name for column in FIXED_COLUMNS}
        return {
            name: value
            for name, value in self.columns.items()
            if name not in fixed and not name.startswith(DEFAULT_PREFIX)
        }


class Table(NamedTuple):
    """The rows of a file or of several: those of the space, and the others."""

    trials: list[Trial]
    outsiders: list[Outsider]

    @property
    def places(self) -> set[tuple[str, str, str]]:
        """The device's slug, the operation and the implementation of the rows: the folders that they belong in."""
        rows: tuple[Trial | Outsider, ...] = (*self.trials, *self.outsiders)
        found = {(row.device, row.operation, row.implementation) for row in rows}
        return {(device.slug, operation, implementation) for device, operation, implementation in found}
