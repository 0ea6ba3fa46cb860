"""Limits of devices: roofs, rates of a cost and a time, and times that no hardware reaches."""

from dataclasses import dataclass
from typing import Any

from autotune.device import Device
from autotune.operation import Cost, Operation
from autotune.platforms import data_sheets
from autotune.shape import Shape


@dataclass(frozen=True, slots=True)
class Roof:
    """Two ceilings, from a data sheet or measured: TFLOP/s of products of one dtype, and GB/s of device memory."""

    tflops: float
    gbps: float

    @property
    def ridge(self) -> float:
        """FLOPs a byte from which on arithmetic, not memory, is the limit."""
        return 1000 * self.tflops / self.gbps

    def attainable(self, intensity: float) -> float:
        """Return the TFLOP/s at most of a kernel with so many FLOPs a byte (Williams et al., CACM 52(4), 2009).

        Example:
            >>> Roof(2.0, 100.0).attainable(10.0)
            1.0
        """
        return min(self.tflops, intensity * self.gbps / 1000)


def product_dtype(operation: Operation[Any], shape: Shape) -> str:
    """Return the type of an operation's products: what it declares, or the shape's ``dtype``; empty without both.

    A cache of one byte an element makes no difference: our kernels multiply it in 16 bits, or twice in int8, which is
    no faster.
    """
    own = str(getattr(shape, "dtype", ""))
    if operation.multiplies_in == "tf32":
        return "tf32" if own in ("float32", "") else own
    return operation.multiplies_in or own


def roof_of(device: str, dtype: str) -> Roof | None:
    """Return the nominal roof of a device, by its name, over products of a dtype; None without a data sheet."""
    sheet = data_sheets().get(device)
    if sheet is None or dtype not in sheet.tflops:
        return None
    return Roof(sheet.tflops[dtype], sheet.gbps)


def rates(cost: Cost, microseconds: float) -> tuple[float, float]:
    """Return the TFLOP/s and GB/s of a run that took that long."""
    return cost.flops / microseconds / 1e6, cost.bytes / microseconds / 1e3


def least_us(cost: Cost, device: Device, dtype: str) -> float:
    """Return the microseconds that no run takes less than, by the device's data sheet; 0 without one.

    Example:
        >>> least_us(Cost(flops=989.5e12, bytes=1), NVIDIA_H200, "bfloat16")
        1000000.0
    """
    sheet = data_sheets().get(device.name)
    if sheet is None:
        return 0.0
    limit = sheet.tflops.get(dtype)
    return max(cost.bytes / sheet.gbps / 1e3, 0.0 if limit is None else cost.flops / limit / 1e6)


def why_implausible(
    cost: Cost, microseconds: float, device: Device, dtype: str, *, cached_bytes: int = 0
) -> str | None:
    """Return the reason why a time cannot be true on a device, or None; of an unknown one, only a time of zero cannot.

    A ``dtype`` that the data sheet has no rate of is judged by its bytes alone, of which ``cached_bytes`` may lie in
    a cache: they need not cross the device's memory.
    """
    if microseconds <= 0:
        return f"{microseconds} us is no time"
    sheet = data_sheets().get(device.name)
    if sheet is None:
        return None
    tflops, gbps = rates(cost, microseconds)
    limit = sheet.tflops.get(dtype)
    if limit is not None and tflops > limit:
        return f"{tflops:.0f} TFLOP/s exceeds the {limit:.0f} of {device.name}"
    gbps *= max(0, cost.bytes - cached_bytes) / cost.bytes if cached_bytes else 1.0
    if gbps > sheet.gbps:
        return f"{gbps:.0f} GB/s exceeds the {sheet.gbps:.0f} of {device.name}"
    return None
