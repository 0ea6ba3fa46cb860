"""Stored winners by operation, device and folder, with the errors of a wrong name or place."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from autotune import platforms
from autotune.console.options import NOT_WRITTEN
from autotune.console.shapes import form_options
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import find_named
from autotune.dispatch.devices import without_rows
from autotune.errors import UsageError
from autotune.registry import get_implementation, get_operation, implementations_of, operation_names
from autotune.table import (
    Outsider,
    Store,
    home,
    is_shipped,
    served_winners,
    shipped_outsiders,
    shipped_sweeps,
    warn_damaged,
)
from autotune.trial import Trial

ASSUMED: Final = f"no GPU here: an {NVIDIA_H200.name} is assumed; --device names another"


def read_winners(
    operation: str, implementations: Sequence[str], device: str | None, tables: Path | None
) -> list[Trial]:
    """Return the winners that would be served, by implementation (without names of all) and shape."""
    get_operation(operation)  # an unknown one would have no rows, which is another error
    known = implementations or [each.name for each in implementations_of(operation)]
    names = [get_implementation(operation, name).name for name in known]
    require_folder(tables)
    served = served_winners(operation, implementations=names, root=tables, on_damaged=warn_damaged)
    rows = [row.trial for row in served]
    if device is not None:
        name = find_device(device, rows, tables).name
        rows = [trial for trial in rows if trial.device.name == name]
    return sorted(rows, key=lambda trial: (trial.device.name, names.index(trial.implementation), _place(trial)))


def read_outsiders(
    operation: str, implementations: Sequence[str], device: str | None, tables: Path | None
) -> list[Outsider]:
    """Return the rows of an operation that are not of today's space, yours and the shipped ones; without names all."""
    store = Store(home() if tables is None else tables, on_damaged=warn_damaged)
    found = [*store.outsiders(operation), *shipped_outsiders(operation, on_damaged=warn_damaged)]
    return [
        each
        for each in found
        if (not implementations or each.implementation in implementations)
        and (device is None or platforms.is_named(each.device, device))
    ]


def _place(trial: Trial) -> tuple[Any, ...]:
    family = [(field is not None, field) for field in trial.shape.family()]  # None does not compare
    return (family, trial.shape.coordinates()[::-1])


def no_winners_text(operation: str, implementations: Sequence[str]) -> str:
    """Explain how to find the first winners, by a command that takes the operation's shapes."""
    names = ",".join(implementations)
    subject = f"{operation}/{names}" if names else operation
    sweeps = shipped_sweeps(operation, on_damaged=warn_damaged)
    is_replayed = any(not names or sweep.implementation in implementations for sweep in sweeps)
    where = "" if is_replayed else " on a GPU"
    chosen, among = (f" --implementation {names}", f" --among {names}") if names else ("", "")
    asked = form_options(operation)
    return (
        f"no winners of {subject} yet: `autotune search {asked}{chosen}`{where} finds some; "
        f"`autotune lookup {asked}{among}` says what is served"
    )


def find_device(name: str, rows: Iterable[Trial], tables: Path | None) -> Device:
    """Find the device of a name, in any case, among rows or else any winners; the highest power cap wins."""
    devices = {trial.device for trial in rows}
    if find_named(name, devices) is None:
        winners = (served_winners(other, root=tables, on_damaged=warn_damaged) for other in operation_names())
        devices |= {row.trial.device for found in winners for row in found}
    found = find_named(name, devices) or find_named(name, [NVIDIA_H200])  # which is assumed where there is no GPU
    if found is None:
        raise without_rows(name, sorted({device.name for device in devices}), platforms.did_you_mean(name, devices))
    return found


def require_folder(tables: Path | None) -> None:
    """Validate the folder to read; None is the usual one, which need not exist yet."""
    if tables is not None and not tables.is_dir():
        raise UsageError(f"tables={str(tables)!r} is not a folder; expected one that `autotune search --tables` wrote")
    require_place(tables)


def require_place(tables: Path | None, name: str = "") -> None:
    """Validate the place of tables, which need not exist yet; None is the usual one.

    It is neither a file, nor below one, nor a folder of tables that ship. ``name`` is that of the argument in errors.
    """
    root, name = home() if tables is None else tables.absolute(), name or name_of_place(tables)
    nearest = next(path for path in (root, *root.parents) if os.path.exists(path))
    if not nearest.is_dir():
        raise UsageError(f"{name}={str(root)!r} is not a folder; expected one, or a path at which one can be made")
    if is_shipped(root):
        raise UsageError(f"{name}={str(root)!r} is {NOT_WRITTEN}; the shipped ones are read without it")


def name_of_place(tables: Path | None) -> str:
    """Return the origin of the place of tables: the option, the variable, or neither."""
    if tables is not None:
        return "tables"
    return "AUTOTUNE_HOME" if os.environ.get("AUTOTUNE_HOME") else "default AUTOTUNE_HOME"
