"""Devices as plain data: identity of what a row was measured on, and facts that spaces and compilers ask for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase, digits
from typing import Final

from autotune.errors import UnknownNameError

# Capabilities of an architecture. Kernels and spaces ask for one of these, never for a vendor.
CAPABILITIES: Final = {
    "async_copies": "asynchronous copies to shared memory, which a pipeline of more than two stages hides",
    "dependent_launch": "launches of a kernel before the one that it waits for has ended",
    "float32_products": "matrix instructions that multiply float32 as IEEE does",
    "fp8_e4m3": "conversions of float8_e4m3fn",
    "tensor_maps": "copies of tiles by tensor-map descriptors",
    "tensor_memory": "accumulators in a memory of the tensor cores",
    "wave_hints": "the compiler options waves_per_eu, matrix_instr_nonkdim and kpack",
    "wgmma": "products by warp groups, which read their factors from shared memory",
}
SLUG_LETTERS: Final = ascii_lowercase + digits
MEMORY_STEP_MIB: Final = 4096  # more than drivers of one model differ by, less than models of one name do


@dataclass(frozen=True, slots=True)
class Architecture:
    """An instruction set: the name of its platform, its limits a thread block, and its ``CAPABILITIES``.

    ``generation`` orders the architectures of a platform. ``tensor_memory_columns`` is 0 for one without tensor memory.
    """

    name: str
    platform: str
    generation: int
    shared_memory_bytes: int
    warp_size: int
    capabilities: frozenset[str]
    tensor_memory_columns: int = 0


ARCHITECTURES: Final[dict[str, Architecture]] = {}  # by name; ``autotune.platforms`` adds those of each vendor
_finders: Final[list[Callable[[str], Architecture | None]]] = []


def add_architectures(listed: Iterable[Architecture], find: Callable[[str], Architecture | None]) -> None:
    """Add a vendor's architectures; ``find`` returns one by its name, listed or not, or None for another vendor's."""
    ARCHITECTURES.update({found.name: found for found in listed})
    _finders.append(find)
    _find.cache_clear()


def architecture(name: str) -> Architecture:
    """Return the listed architecture of that name; UnknownNameError, with those that are, for another."""
    try:
        return ARCHITECTURES[name]
    except KeyError:
        allowed = f"{', '.join(ARCHITECTURES)}, or a device such as {NVIDIA_H200.name}"
        raise UnknownNameError(f"target={name!r} is unknown; allowed: {allowed}") from None


@cache
def _find(name: str) -> Architecture:
    """Return an architecture by name; an unlisted one has the least that its vendor's current GPUs have."""
    for find in _finders:
        if (found := find(name)) is not None:
            return found
    raise UnknownNameError(
        f"arch={name!r} belongs to no vendor that is supported; expected a name like {', '.join(ARCHITECTURES)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Device:
    """One model of GPU at one power cap, as tables identify it; devices that agree in both are equal.

    ``memory_mib`` is a fact beside the identity: drivers keep different amounts of the memory of one model.
    ``power_cap_watts`` is None where it cannot be read. Questions about the architecture raise ``UnknownNameError`` for
    one of an unknown vendor.
    """

    name: str
    arch: str
    sm_count: int
    memory_mib: int
    power_cap_watts: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Device):
            return NotImplemented
        return self.power_cap_watts == other.power_cap_watts and self.model == other.model

    def __hash__(self) -> int:
        return hash(self.name)  # few devices share one, and each row of a table is hashed by its device

    @property
    def architecture(self) -> Architecture:
        """The architecture, listed or not."""
        return _find(self.arch)

    @property
    def shared_memory_bytes(self) -> int:
        """Bytes of shared memory that one thread block may use."""
        return _find(self.arch).shared_memory_bytes

    @property
    def warp_size(self) -> int:
        """Threads that run in lockstep."""
        return _find(self.arch).warp_size

    def has(self, capability: str) -> bool:
        """Return True if the architecture has one of the ``CAPABILITIES``.

        Example:
            >>> NVIDIA_H200.has("tensor_maps")
            True
        """
        return check_capability(capability) in _find(self.arch).capabilities

    def is_from(self, name: str) -> bool:
        """Return True if the architecture is the named one, or a newer one of the same vendor."""
        here, first = _find(self.arch), _find(name)
        return here.platform == first.platform and here.generation >= first.generation

    @property
    def model(self) -> tuple[str, str, int, int]:
        """Identity without the power cap.

        Memory counts in steps of 4 GiB: boards of one name with 8 and with 16 GiB are two models, and one whose drivers
        report 81,920 or 81,251 MiB (A100 80GB) is one.
        """
        return (self.name, self.arch, self.sm_count, round(self.memory_mib / MEMORY_STEP_MIB))

    @property
    def slug(self) -> str:
        """The name as a folder: ``"NVIDIA H200"`` -> ``"nvidia_h200"``."""
        return slug_of(self.name)


def slug_of(name: str) -> str:
    """Return a device's name as a folder."""
    return "_".join("".join(each if each in SLUG_LETTERS else " " for each in name.lower()).split())


def check_capability(name: str) -> str:
    """Return the name of a capability; UnknownNameError for none of ``CAPABILITIES``."""
    if name not in CAPABILITIES:
        raise UnknownNameError(f"capability={name!r} is unknown; allowed: {', '.join(CAPABILITIES)}")
    return name


# Read with nvidia-smi on the machine that recorded the shipped sweeps (2026-11-21).
NVIDIA_H200: Final = Device(name="NVIDIA H200", arch="sm_90", sm_count=132, memory_mib=143771, power_cap_watts=700)
