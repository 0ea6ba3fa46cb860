"""The implementations that may be served: of those that ``among`` names the ones that support the problem."""

from typing import Any, Literal

from autotune.device import Device
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
    reasons = [each.supports(shape, device) for each in found]
    left = [each for each, reason in zip(found, reasons, strict=True) if reason is None]
    if not left:
        raise InvalidShapeError("; ".join(reason for reason in reasons if reason))
    return left
