"""Stored rows that may be served, portfolios, and the devices that they name, each read once a generation."""

import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from autotune import platforms
from autotune.device import Device, slug_of
from autotune.dispatch.devices import find_named, known_or_here
from autotune.dispatch.read_once import ReadOnce
from autotune.errors import one_line
from autotune.registry import implementation_names, operation_names

if TYPE_CHECKING:
    from autotune.shape import Shape
    from autotune.space import Config
    from autotune.table import Assignment, Compilation, Served


@cache
def can_read_tables() -> bool:
    """Return True if tables can be read at all; without pyarrow that is warned of once, and defaults are served."""
    try:
        import autotune.table  # noqa: F401
    except Exception as error:  # a broken package may raise anything
        message = (
            f"no table can be read, so defaults are served: {one_line(error)}; `pip install 'pyarrow>=17'` mends it"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=6)
        return False
    return True


@ReadOnce
def rows_of(operation: str, implementations: tuple[str, ...], slug: str, generation: int) -> "tuple[Served, ...]":
    """Read the stored winners of implementations, on devices of a slug, or on all with ``""``; see ``served_of``."""
    if not can_read_tables():
        return ()
    from autotune.table import stored_winners, warn_damaged  # pyarrow takes 0.1 s to import

    return tuple(stored_winners(operation, implementations=implementations, slug=slug, on_damaged=warn_damaged))


def served_of(rows: "Iterable[Served]") -> "list[Served]":
    """Return those of stored winners that are served, of one problem the best first (``autotune.table.served_of``)."""
    if not (found := tuple(rows)):
        return []  # and import nothing
    from autotune.table import served_of

    return served_of(found)


def is_valid(row: "Served") -> bool:
    """Return True if a stored winner may be served at all (``autotune.table.is_valid``)."""
    from autotune.table import is_valid

    return is_valid(row.trial)


@ReadOnce
def portfolios_of(operation: str, implementation: str, generation: int) -> "tuple[Assignment, ...]":
    """Read the portfolios of an implementation on all architectures."""
    if not can_read_tables():
        return ()
    from autotune.table import shipped_portfolios, warn_damaged

    return tuple(shipped_portfolios(operation, implementation=implementation, on_damaged=warn_damaged))


@ReadOnce
def compilations_of(
    operation: str, implementation: str, arch: str, generation: int
) -> "dict[tuple[Shape, Config], list[Compilation]]":
    """Read what several versions of Triton make of an implementation's stored configs, by shape and config."""
    from autotune.table import shipped_compilations, warn_damaged

    found: dict[tuple[Shape, Config], list[Compilation]] = {}
    for row in shipped_compilations(operation, arch=arch, implementation=implementation, on_damaged=warn_damaged):
        found.setdefault((row.shape, row.config), []).append(row)
    return found


def forget() -> None:
    """Read the tables anew when they are asked next."""
    can_read_tables.cache_clear()
    rows_of.forget()
    portfolios_of.forget()
    compilations_of.forget()


def device_named(
    name: str, generation: int, operation: str = "", implementations: tuple[str, ...] = ()
) -> Device | None:
    """Find the device that a name means: in the rows of an operation's implementations, or else in any, with the
    highest power cap; the GPU here; or a known one, of which nothing is recorded.

    The folder that has the name is read first, and mostly alone. A row of the user cannot make another model of a name
    that tables ship for, nor another architecture of one that is known.
    """
    known = platforms.known_device(name)
    for slug in (slug_of(name if known is None else known.name), ""):
        own = rows_of(operation, implementations, slug, generation) if implementations else ()
        if (found := _recorded_device(name, own)) is not None:
            return found
    return _recorded_device(name, _all_rows(generation)) or known_or_here(name)


def _recorded_device(name: str, rows: "Iterable[Served]") -> Device | None:
    """Find the device that a name means in rows: of a model that ships under it, else of the architecture known."""
    named = {device: origin for device, origin in _origins(rows).items() if platforms.is_named(device, name)}
    models = {device.model for device, origin in named.items() if origin == "shipped"}
    known = platforms.known_device(name)
    if models:
        return find_named(name, (device for device in named if device.model in models))
    return find_named(name, (device for device in named if known is None or device.arch == known.arch))


def similar_names(name: str, generation: int) -> str:
    """Return the end of an error about a name that no table knows (``platforms.did_you_mean``)."""
    return platforms.did_you_mean(name, [*platforms.known_devices(), *_devices(_all_rows(generation))])


def _all_rows(generation: int) -> "Iterator[Served]":
    return (
        row for name in operation_names() for row in rows_of(name, tuple(implementation_names(name)), "", generation)
    )


def _devices(rows: "Iterable[Served]") -> list[Device]:
    """List each device that has a valid row once, in the order of the rows: the same in every process."""
    return list(_origins(rows))


def _origins(rows: "Iterable[Served]") -> dict[Device, str]:
    """Return whose table has a valid row of each device, in the order of the rows; "shipped" where both have one."""
    found: dict[Device, str] = {}
    for row in rows:
        if found.get(row.trial.device) not in ("shipped", row.origin) and is_valid(row):
            found[row.trial.device] = row.origin
    return found
