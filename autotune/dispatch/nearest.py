"""Winners of shapes near another one, as configs for a search to begin with."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from autotune.device import Device
from autotune.dispatch.table_reading import served_of
from autotune.implementation import Implementation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Trial

if TYPE_CHECKING:
    from autotune.table import Served


def nearest_configs(
    rows: "Iterable[Served]",
    implementation: Implementation[Any],
    shape: Shape,
    device: Device,
    *,
    of_model: bool,
    shipped: bool,
) -> list[Config]:
    """List the distinct configs of an implementation's rows, those of the nearest shapes first.

    Of one distance those of the same architecture come first. ``of_model``: of this model of device, or of all others;
    ``shipped=False`` leaves out the rows that ship.
    """

    def remoteness(trial: Trial) -> tuple[Any, ...]:
        return (shape.distance(trial.shape), trial.device.arch != device.arch, repr((trial.shape, trial.device)))

    kept = (
        row
        for row in rows
        if (shipped or row.origin != "shipped") and (row.trial.device.model == device.model) == of_model
    )
    own = (row.trial for row in served_of(kept) if row.trial.implementation == implementation.name)
    near = sorted((trial for trial in own if shape.distance(trial.shape) < math.inf), key=remoteness)
    return list(dict.fromkeys(trial.config for trial in near))
