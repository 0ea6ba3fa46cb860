"""Which winner is served for a shape and device when several tables have one."""

from pathlib import Path
from typing import Literal, NamedTuple

from autotune.device import Device
from autotune.shape import Shape
from autotune.table.shipped import shipped_winners
from autotune.table.store import OnDamaged, Store, home, raise_damaged
from autotune.table.winners import winners
from autotune.trial import Trial


class Served(NamedTuple):
    """A winner, and whose table it stands in."""

    trial: Trial
    origin: Literal["user", "shipped"]


def served_winners(operation: str, *, root: Path | None = None, on_damaged: OnDamaged = raise_damaged) -> list[Served]:
    """One winner for each shape, device and policy: what the user measured, else what ships, else what was replayed.

    ``root`` is the user's store, ``home()`` by default.

    Raises:
        TableError: by ``on_damaged``.
    """
    users = winners(Store(root or home()).trials(operation, on_damaged=on_damaged))
    shipped = winners(shipped_winners(operation, on_damaged=on_damaged))
    ranked = [
        *(Served(trial, "user") for trial in users if trial.executor == "gpu"),
        *(Served(trial, "shipped") for trial in shipped),
        *(Served(trial, "user") for trial in users),
    ]
    best: dict[tuple[Device, Shape, object], Served] = {}
    for row in ranked:
        best.setdefault((row.trial.device, row.trial.shape, row.trial.policy), row)
    return list(best.values())
