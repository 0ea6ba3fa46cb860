"""Devices by name, for asking off-GPU: the known ones, and names that nobody knows."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

from autotune import platforms
from autotune.device import Device
from autotune.errors import MissingDependencyError, UnknownNameError

TORCH_DEVICES: Final = ("cpu", "cuda", "hip", "hpu", "mps", "xpu")  # torch's words for devices, which name no GPU


def find_named(name: str, devices: Iterable[Device]) -> Device | None:
    """Return the device that a name means (``platforms.is_named``), with the highest power cap; None without one."""
    named = [device for device in devices if platforms.is_named(device, name)]
    return max(named, key=lambda device: device.power_cap_watts or 0, default=None)


def device_here() -> Device | None:
    """Return the current GPU, or None; torch, whose import takes seconds, is not asked where no driver is loaded."""
    if not platforms.has_gpu():
        return None
    try:
        return platforms.current_device()
    except MissingDependencyError:
        return None


def known_or_here(name: str) -> Device | None:
    """Return the device that a name means without any table: the GPU here, or a known one; else None."""
    return find_named(name, filter(None, [device_here()])) or platforms.known_device(name)


def without_rows(name: str, known: Sequence[str], hint: str = "") -> UnknownNameError:
    """Make the error for a device without a row, which ``hint`` ends; ``known`` are those that have some.

    Of a name that means nothing, and without a hint, it lists all that mean something, those that are like it first.
    """
    rows = f"devices with rows: {', '.join(known) or 'none'}"
    if known_or_here(name) is not None:
        return UnknownNameError(f"device={name!r} has no rows; {rows}{hint}")
    if hint:
        return UnknownNameError(f"device={name!r} is unknown; {rows}{hint}")
    others = ", ".join(_likest_first(name, {device.name for device in platforms.known_devices()} - set(known)))
    listed = f"known without rows, the likest first: {others}; or an architecture such as sm_80"
    return UnknownNameError(f"device={name!r} is unknown; {rows}; {listed}")


def _likest_first(name: str, others: Iterable[str]) -> list[str]:
    """Sort names of devices by how like one they are, which may be another model's; of two as like by the alphabet."""
    matcher = difflib.SequenceMatcher(b=platforms.plain_name(name))

    def likeness(other: str) -> float:
        matcher.set_seq1(platforms.plain_name(other))
        return matcher.ratio()

    return sorted(others, key=lambda other: (-likeness(other), other))


def stranger(name: str) -> Device:
    """Make a device for a name that nobody knows: only defaults fit it."""
    here = device_here()
    return Device(name=name, arch=platforms.ASSUMED_ARCH if here is None else here.arch, sm_count=1, memory_mib=1)


def is_torch_device(name: str) -> bool:
    """Return True for torch's words such as ``"cuda:0"``, which name no model of GPU."""
    kind, colon, index = plain(name).partition(":")
    return kind in TORCH_DEVICES and (not colon or index.isdecimal())


def plain(name: str) -> str:
    """Strip a name of what makes no difference: case, and how many blanks."""
    return " ".join(name.split()).lower()
