"""Devices as plain data: what a table row was measured on, and what a compiler needs to know of a target."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from autotune.errors import UnknownNameError

Backend = Literal["cuda", "hip"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """An instruction set and the most shared memory that one thread block of it may use."""

    name: str
    backend: Backend
    shared_memory_bytes: int
    warp_size: int = 32

    @property
    def capability(self) -> int | str:
        """What ``triton.backends.compiler.GPUTarget`` calls the arch: ``90`` or ``"gfx942"``."""
        return int(self.name.removeprefix("sm_")) if self.backend == "cuda" else self.name


# Shared memory per block: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"
# (opt-in maximum); AMD: local data share per workgroup, CDNA3 and CDNA4 instruction set guides.
ARCHITECTURES: Final = {
    arch.name: arch
    for arch in (
        Architecture("sm_80", "cuda", 163 * 1024),
        Architecture("sm_86", "cuda", 99 * 1024),
        Architecture("sm_87", "cuda", 163 * 1024),
        Architecture("sm_89", "cuda", 99 * 1024),
        Architecture("sm_90", "cuda", 227 * 1024),
        Architecture("sm_100", "cuda", 227 * 1024),
        Architecture("sm_103", "cuda", 227 * 1024),
        Architecture("sm_110", "cuda", 227 * 1024),
        Architecture("sm_120", "cuda", 99 * 1024),
        Architecture("sm_121", "cuda", 99 * 1024),
        Architecture("gfx90a", "hip", 64 * 1024, warp_size=64),
        Architecture("gfx942", "hip", 64 * 1024, warp_size=64),
        Architecture("gfx950", "hip", 160 * 1024, warp_size=64),
    )
}


def architecture(name: str) -> Architecture:
    """The architecture of that name, or an error that lists the known ones."""
    try:
        return ARCHITECTURES[name]
    except KeyError:
        raise UnknownNameError(f"target={name!r} is unknown; allowed: {', '.join(ARCHITECTURES)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One model of GPU as tables identify it: name, SM count, memory and power cap, never the arch alone.

    ``power_cap_watts`` is None where it cannot be read. Two devices are of one model when all but the power cap agree.
    """

    name: str
    arch: str
    sm_count: int
    memory_mib: int
    power_cap_watts: int | None = None

    @property
    def architecture(self) -> Architecture:
        return architecture(self.arch)

    @property
    def backend(self) -> Backend:
        return "cuda" if self.arch.startswith("sm_") else "hip"

    @property
    def shared_memory_bytes(self) -> int:
        """Bytes one block may use; for an architecture not listed, the least that its vendor's current GPUs have."""
        known = ARCHITECTURES.get(self.arch)
        if known is not None:
            return known.shared_memory_bytes
        return 99 * 1024 if self.backend == "cuda" else 64 * 1024

    @property
    def warp_size(self) -> int:
        """Threads that run in lockstep; for an architecture not listed, that of its vendor's current GPUs."""
        known = ARCHITECTURES.get(self.arch)
        if known is not None:
            return known.warp_size
        return 64 if self.arch.startswith("gfx9") else 32

    @property
    def model(self) -> tuple[str, str, int, int]:
        """Identity without the power cap; memory in GiB, since drivers differ in what they keep of it."""
        return (self.name, self.arch, self.sm_count, round(self.memory_mib / 1024))

    @property
    def slug(self) -> str:
        """The name as a folder: ``"NVIDIA H200"`` -> ``"nvidia_h200"``."""
        return re.sub(r"[^a-z0-9]+", "_", self.name.lower()).strip("_")


# Read with nvidia-smi on the machine that recorded the shipped sweeps (2026-11-21).
NVIDIA_H200: Final = Device(name="NVIDIA H200", arch="sm_90", sm_count=132, memory_mib=143771, power_cap_watts=700)
