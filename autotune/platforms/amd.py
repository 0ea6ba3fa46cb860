"""AMD: architectures and data sheets. Kernels are compiled for it; nothing here is verified on hardware."""

import re
from collections.abc import Mapping
from typing import Any, Final

from autotune.device import Architecture, Device
from autotune.platforms.interface import DataSheet, Platform, Target

NAME: Final = "amd"
# KiB of the local data share a workgroup: CDNA3 and CDNA4 instruction set guides. One that is not listed has the least.
SHARED_KIB: Final = {"gfx90a": 64, "gfx942": 64, "gfx950": 160}
MI300X: Final = Device(name="AMD Instinct MI300X", arch="gfx942", sm_count=304, memory_mib=192 * 1024)
# Compute units and memory: rocm.docs.amd.com, reference/gpu-specs (read 2026-11-23). Of an MI250X a device is one of
# its two dies. Other names of a device follow it.
DEVICES: Final[Mapping[Device, tuple[str, ...]]] = {
    Device(name="AMD Instinct MI250X", arch="gfx90a", sm_count=110, memory_mib=64 * 1024): ("MI250X/MI250",),
    MI300X: (),
    Device(name="AMD Instinct MI325X", arch="gfx942", sm_count=304, memory_mib=256 * 1024): (),
    Device(name="AMD Instinct MI350X", arch="gfx950", sm_count=256, memory_mib=288 * 1024): (),
    Device(name="AMD Instinct MI355X", arch="gfx950", sm_count=256, memory_mib=288 * 1024): (),
}
CAPABILITIES: Final = frozenset({"float32_products", "fp8_e4m3", "wave_hints"})


def architecture_of(name: str) -> Architecture:
    """Return ``gfxN`` for any N; CDNA (gfx9) has waves of 64 threads, RDNA of 32."""
    return Architecture(
        name=name,
        platform=NAME,
        generation=int(name.removeprefix("gfx"), 16),
        shared_memory_bytes=SHARED_KIB.get(name, min(SHARED_KIB.values())) * 1024,
        warp_size=64 if name.startswith("gfx9") else 32,
        capabilities=CAPABILITIES,
    )


class Amd(Platform):
    """AMD's GPUs, through ROCm. Clocks, other processes and the driver are unknown."""

    name = NAME
    driver_files = ("/dev/kfd", "/dev/dxg")
    visibility = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    binary = "hsaco"
    architectures = tuple(map(architecture_of, SHARED_KIB))
    # AMD Instinct MI300X (2023), whose products of float32 are IEEE's.
    data_sheets = (DataSheet(MI300X, {"float16": 1307.4, "bfloat16": 1307.4, "tf32": 653.7, "float32": 163.4}, 5300),)
    brands = frozenset({"amd", "instinct"})
    devices = DEVICES

    def find_architecture(self, name: str) -> Architecture | None:
        return architecture_of(name) if re.fullmatch(r"gfx[0-9a-f]{3,4}", name) else None

    def target(self, architecture: Architecture) -> Target:
        return Target("hip", architecture.name, architecture.warp_size)

    def read_arch(self, properties: Any) -> str:
        return str(properties.gcnArchName).split(":")[0]

    def read_resources(self, asm: Mapping[str, Any]) -> tuple[int | None, int | None]:
        text = asm.get("amdgcn", "")
        registers = re.search(r"\.vgpr_count:\s*(\d+)", text)
        stack = re.search(r"\.private_segment_fixed_size:\s*(\d+)", text)
        return int(registers[1]) if registers else None, int(stack[1]) if stack else None
