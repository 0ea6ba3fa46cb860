"""What a device can do at most: turns a cost and a time into rates, and refuses times that no hardware reaches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from autotune.device import Device
from autotune.operation import Cost
from autotune.shape import Shape


@dataclass(frozen=True, slots=True)
class Roof:
    """Two ceilings, from a data sheet or measured: TFLOP/s of products of one dtype, and GB/s of device memory."""

    tflops: float
    gbps: float

    @property
    def ridge(self) -> float:
        """FLOPs a byte from which on arithmetic limits, and not the memory."""
        return 1000 * self.tflops / self.gbps

    def attainable(self, intensity: float) -> float:
        """TFLOP/s at most, of a kernel with so many FLOPs a byte (Williams et al., CACM 52(4), 2009).

        Example:
            >>> Roof(2.0, 100.0).attainable(10.0)
            1.0
        """
        return min(self.tflops, intensity * self.gbps / 1000)


@dataclass(frozen=True, slots=True)
class DataSheet:
    """What a vendor states of a device: dense TFLOP/s by the dtype of the operands, and GB/s of device memory.

    Rates of tensor cores are halved where they are stated with sparsity. That of float32 is a sixth of the 16-bit one
    on NVIDIA's devices: our kernels make a product of six in bfloat16, torch's efficient SDPA of three in TF32 at half
    the rate (mem_eff_attention/gemm_kernel_utils.h). On AMD's it is IEEE's. Sources: NVIDIA A100 80GB SXM (2021), H100
    SXM (2023), H200 SXM (2024); AMD Instinct MI300X (2023).
    """

    tflops: Mapping[str, float]
    gbps: float


def _data_sheet(tflops_in_16_bits: float, tflops_in_float32: float, gbps: float) -> DataSheet:
    rates_by_dtype = {"float16": tflops_in_16_bits, "bfloat16": tflops_in_16_bits, "float32": tflops_in_float32}
    return DataSheet(rates_by_dtype, gbps)


DATA_SHEETS: Final = {
    "NVIDIA A100-SXM4-80GB": _data_sheet(312, 312 / 6, 2039),
    "NVIDIA H100 80GB HBM3": _data_sheet(989.5, 989.5 / 6, 3352),
    "NVIDIA H200": _data_sheet(989.5, 989.5 / 6, 4800),
    "AMD Instinct MI300X": _data_sheet(1307.4, 163.4, 5300),
}


def product_dtype(shape: Shape) -> str:
    """In which dtype the products of an operation are: the queries'; empty where a shape has none.

    A cache of one byte an element makes no difference: our kernels multiply it in 16 bits, or twice in int8, which is
    no faster.
    """
    return str(shape.as_dict().get("dtype", ""))


def roof_of(device: str, dtype: str) -> Roof | None:
    """The nominal roof of a device, given by its name, over products of a dtype; None where no data sheet is known."""
    sheet = DATA_SHEETS.get(device)
    if sheet is None or dtype not in sheet.tflops:
        return None
    return Roof(sheet.tflops[dtype], sheet.gbps)


def rates(cost: Cost, microseconds: float) -> tuple[float, float]:
    """TFLOP/s and GB/s of a run that took that long."""
    return cost.flops / microseconds / 1e6, cost.bytes / microseconds / 1e3


def why_implausible(cost: Cost, microseconds: float, device: Device, dtype: str) -> str | None:
    """Why a time cannot be true on this device, or None; unknown devices refuse nothing but times of zero.

    Arithmetic refuses nothing in a ``dtype`` that the data sheet has no rate of.
    """
    if microseconds <= 0:
        return f"{microseconds} us is no time"
    sheet = DATA_SHEETS.get(device.name)
    if sheet is None:
        return None
    tflops, gbps = rates(cost, microseconds)
    limit = sheet.tflops.get(dtype)
    if limit is not None and tflops > limit:
        return f"{tflops:.0f} TFLOP/s exceeds the {limit:.0f} of {device.name}"
    if gbps > sheet.gbps:
        return f"{gbps:.0f} GB/s exceeds the {sheet.gbps:.0f} of {device.name}"
    return None
