"""Stored rows that may be served, portfolios, and the devices that they name, each read once a generation."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from autotune import platforms
from autotune.device import Device, slug_of
from autotune.dispatch.devices import find_named, known_or_here
from autotune.registry import implementation_names, operation_names

if TYPE_CHECKING:
    from autotune.shape import Shape
    from autotune.space import Config
    from autotune.table import Assignment, Compilation, Served


@cache
def rows_of(operation: str, implementations: tuple[str, ...], slug: str, generation: int) -> "tuple[Served, ...]":
    """Read the stored winners of implementations, on devices of a slug, or on all with ``""``; see ``served_of``."""
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


@cache
def portfolios_of(operation: str, implementation: str, generation: int) -> "tuple[Assignment, ...]":
    """Read the portfolios of an implementation on all architectures."""
    from autotune.table import shipped_portfolios, warn_damaged

    return tuple(shipped_portfolios(operation, implementation=implementation, on_damaged=warn_damaged))


@cache
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
    rows_of.cache_clear()
    portfolios_of.cache_clear()
    compilations_of.cache_clear()


def device_named(
    name: str, generation: int, operation: str = "", implementations: tuple[str, ...] = ()
) -> Device | None:
    """Find the device that a name means: in the rows of an operation's implementations, or else in any, with the
    highest power cap; the GPU here; or a known one, of which nothing is recorded.

    The folder that has the name is read first, and mostly alone.
    """
    known = platforms.known_device(name)
    for slug in (slug_of(name if known is None else known.name), ""):
        own = rows_of(operation, implementations, slug, generation) if implementations else ()
        if (found := find_named(name, _devices(own))) is not None:
            return found
    return find_named(name, _devices(_all_rows(generation))) or known_or_here(name)


def similar_names(name: str, generation: int) -> str:
    """Return the end of an error about a name that no table knows (``platforms.did_you_mean``)."""
    return platforms.did_you_mean(name, [*platforms.known_devices(), *_devices(_all_rows(generation))])


def _all_rows(generation: int) -> "Iterator[Served]":
    return (
        row for name in operation_names() for row in rows_of(name, tuple(implementation_names(name)), "", generation)
    )


def _devices(rows: "Iterable[Served]") -> list[Device]:
    """List each device that has a valid row once, in the order of the rows: the same in every process."""
    found: dict[Device, None] = {}
    for row in rows:
        if row.trial.device not in found and is_valid(row):
            found[row.trial.device] = None
    return list(found)
