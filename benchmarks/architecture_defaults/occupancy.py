"""Occupancy: the blocks of a compiled kernel that an SM, or a compute unit of AMD, holds at once."""

from dataclasses import dataclass
from typing import Final

from autotune.device import Architecture
from autotune.trial import Resources

SCHEDULERS: Final = 4  # an SM's, each with a quarter of the registers; on AMD the SIMD units of a compute unit
REGISTER_STEP: Final = 8  # the registers of a thread are rounded up to a multiple


@dataclass(frozen=True, slots=True)
class OccupancyLimits:
    """Resources that blocks of an SM share: registers of 32 bits, bytes of shared memory, room for warps and blocks.

    ``reserved_bytes`` of shared memory are the system's, of each block.
    """

    registers: int
    shared_bytes: int
    reserved_bytes: int
    warps: int
    blocks: int


def _nvidia(shared_kib: int, warps: int, blocks: int) -> OccupancyLimits:
    return OccupancyLimits(
        registers=64 * 1024, shared_bytes=shared_kib * 1024, reserved_bytes=1024, warps=warps, blocks=blocks
    )


# NVIDIA: CUDA Programming Guide, 5.1 "Compute Capabilities", tables of technical specifications and of memory
# (https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html); a warp's registers are
# allocated in steps of 256. AMD: 512 vector registers a lane of each of four SIMD units, in steps of 8, 8 waves a SIMD
# unit and 16 workgroups of several waves a compute unit (LLVM, lib/Target/AMDGPU/Utils/AMDGPUBaseInfo.cpp, gfx90a and
# gfx942); 64 KiB of the local data share (CDNA3 instruction set guide).
LIMITS: Final = {
    "sm_80": _nvidia(164, 64, 32),
    "sm_86": _nvidia(100, 48, 16),
    "sm_89": _nvidia(100, 48, 24),
    "sm_90": _nvidia(228, 64, 32),
    "sm_120": _nvidia(100, 48, 24),
    "gfx942": OccupancyLimits(registers=4 * 512 * 64, shared_bytes=64 * 1024, reserved_bytes=0, warps=32, blocks=16),
}


def blocks_at_once(resources: Resources, warps: int, architecture: Architecture) -> int:
    """Return how many blocks of so many warps an SM holds; 0 for one that fits none, or whose binary is not known.

    Example:
        >>> blocks_at_once(Resources(shared_bytes=49208, registers=122), 4, architecture("sm_90"))
        4
    """
    if resources.registers is None or resources.shared_bytes is None:
        return 0
    limits = LIMITS[architecture.name]
    rounded = -(-max(1, resources.registers) // REGISTER_STEP) * REGISTER_STEP
    warps_by_registers = SCHEDULERS * (limits.registers // SCHEDULERS // (rounded * architecture.warp_size))
    by_shared = limits.shared_bytes // max(1, resources.shared_bytes + limits.reserved_bytes)
    return min(warps_by_registers // warps, by_shared, limits.warps // warps, limits.blocks)
