"""What a device can do at most: turns a cost and a time into rates, and refuses times that no hardware reaches."""

from dataclasses import dataclass
from typing import Final

from autotune.device import Device
from autotune.operation import Cost


@dataclass(frozen=True, slots=True)
class Peak:
    """Vendor's dense matrix rate in 16 bits (TFLOP/s) and device memory bandwidth (GB/s)."""

    tflops: float
    gbps: float


# Datasheets: NVIDIA A100 80GB SXM (2021), H100 SXM (2023), H200 SXM (2024); AMD Instinct MI300X (2023).
PEAKS: Final = {
    "NVIDIA A100-SXM4-80GB": Peak(312, 2039),
    "NVIDIA H100 80GB HBM3": Peak(989.5, 3352),
    "NVIDIA H200": Peak(989.5, 4800),
    "AMD Instinct MI300X": Peak(1307.4, 5300),
}


def rates(cost: Cost, microseconds: float) -> tuple[float, float]:
    """TFLOP/s and GB/s of a run that took that long."""
    return cost.flops / microseconds / 1e6, cost.bytes / microseconds / 1e3


def why_implausible(cost: Cost, microseconds: float, device: Device) -> str | None:
    """Why a time cannot be true on this device, or None; unknown devices refuse nothing but times of zero."""
    if microseconds <= 0:
        return f"{microseconds} us is no time"
    peak = PEAKS.get(device.name)
    if peak is None:
        return None
    tflops, gbps = rates(cost, microseconds)
    if tflops > peak.tflops:
        return f"{tflops:.0f} TFLOP/s exceeds the {peak.tflops:.0f} of {device.name}"
    if gbps > peak.gbps:
        return f"{gbps:.0f} GB/s exceeds the {peak.gbps:.0f} of {device.name}"
    return None
