"""The implementations that may be served: of those that ``among`` names the ones that support the problem."""

from collections.abc import Sequence
from typing import Any, Literal

from autotune import platforms
from autotune.device import ARCHITECTURES, Device
from autotune.errors import InvalidShapeError, UnknownNameError
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.registry import get_implementation, implementation_names, implementations_of
from autotune.shape import Shape

Among = Literal["ours", "fastest"] | tuple[str, ...]


def named(operation: Operation[Any], among: Among) -> list[Implementation[Any]]:
    """List the implementations that ``among`` names, ours first."""
    if not isinstance(among, tuple):
        found = [each for each in implementations_of(operation.name) if each.is_ours or among == "fastest"]
    else:
        known = implementation_names(operation.name)
        for name in among:
            if name not in known:
                allowed = f"ours, fastest, or implementations of {operation.name}: {', '.join(known) or 'none'}"
                raise UnknownNameError(f"among={name!r} is unknown; allowed: {allowed}")
        found = [get_implementation(operation.name, name) for name in dict.fromkeys(among)]
    if not found:
        raise UnknownNameError(f"operation={operation.name!r} has no implementation that among={among!r} admits")
    return found


def admitted(operation: Operation[Any], shape: Shape, device: Device, among: Among) -> list[Implementation[Any]]:
    """List the implementations that may be served for a shape on a device, ours first."""
    if (problem := operation.unsupported(shape)) is not None:
        raise InvalidShapeError(problem)
    found = named(operation, among)
    left = [each for each in found if each.supports(shape, device) is None]
    if not left:
        raise InvalidShapeError(why_unsupported(found, shape, device))
    return left


def why_unsupported(implementations: Sequence[Implementation[Any]], shape: Shape, device: Device) -> str:
    """Return why none of these implementations computes a shape on a device.

    The reasons that matter are those of the ones that compute it on the most architectures: for them it is the device
    that lacks something. An implementation for other shapes, or for one architecture, says what nobody asked.
    """
    others = [other for name in ARCHITECTURES if (other := platforms.known_device(name)) is not None]
    counts = [sum(each.supports(shape, other) is None for other in others) for each in implementations]
    widest = [each for each, count in zip(implementations, counts, strict=True) if count == max(counts)]
    return "; ".join(dict.fromkeys(reason for each in widest if (reason := each.supports(shape, device))))
