"""Places: what a pick is asked for, a GPU here by its index, a device or a name, and the device that it means."""

from typing import Any

from autotune import platforms
from autotune.device import Device
from autotune.dispatch.among import Among, named
from autotune.dispatch.answers import names_of
from autotune.dispatch.devices import known_or_here
from autotune.dispatch.generation import current_generation, switches_of
from autotune.dispatch.pins import Switches
from autotune.dispatch.table_reading import device_named, similar_names
from autotune.operation import Operation


def find_device(
    place: int | str | Device, operation: Operation[Any], among: Among, switches: Switches, generation: int
) -> Device | None:
    """Return the device of a place; None for a name that nobody knows."""
    if not isinstance(place, str):
        return place if isinstance(place, Device) else platforms.current_device(place)
    if switches.is_disabled:
        return known_or_here(place)
    return device_named(place, generation, operation.name, names_of(named(operation, among)))


def did_you_mean(name: str, switches: Switches, generation: int) -> str:
    """Return the end of an error about a name that nobody knows (``platforms.did_you_mean``)."""
    if switches.is_disabled:
        return platforms.did_you_mean(name, platforms.known_devices())
    return similar_names(name, generation)


def device_by_name(name: str) -> Device | None:
    """Return the device that ``get_kernel`` takes a name for; None for one that nobody knows."""
    generation = current_generation()
    return known_or_here(name) if switches_of(generation).is_disabled else device_named(name, generation)
