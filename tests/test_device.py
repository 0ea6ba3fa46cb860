"""Devices are told apart by what tables say of them, and know their limits without a GPU."""

from dataclasses import replace

import pytest

from autotune.device import ARCHITECTURES, NVIDIA_H200, Device, architecture
from autotune.errors import UnknownNameError


# CUDA C++ Programming Guide, compute capabilities, maximum shared memory per thread block; AMD CDNA3 and CDNA4 guides.
@pytest.mark.parametrize(
    ("arch", "kibibytes", "backend", "capability", "warp_size"),
    [
        ("sm_80", 163, "cuda", 80, 32),
        ("sm_86", 99, "cuda", 86, 32),
        ("sm_89", 99, "cuda", 89, 32),
        ("sm_90", 227, "cuda", 90, 32),
        ("sm_100", 227, "cuda", 100, 32),
        ("sm_120", 99, "cuda", 120, 32),
        ("gfx942", 64, "hip", "gfx942", 64),
        ("gfx950", 160, "hip", "gfx950", 64),
    ],
)
def test_architectures(arch: str, kibibytes: int, backend: str, capability: int | str, warp_size: int) -> None:
    found = architecture(arch)
    assert found.shared_memory_bytes == kibibytes * 1024
    assert (found.backend, found.capability, found.warp_size) == (backend, capability, warp_size)
    device = replace(NVIDIA_H200, arch=arch)
    assert device.shared_memory_bytes == kibibytes * 1024
    assert device.backend == backend
    assert device.architecture is found


def test_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"target='sm_10' is unknown; allowed: sm_80, .*gfx950"):
        architecture("sm_10")


@pytest.mark.parametrize("backend", ["cuda", "hip"])
def test_an_unlisted_architecture_has_the_least_of_its_vendor(backend: str) -> None:
    device = Device(name="new", arch="sm_999" if backend == "cuda" else "gfx9999", sm_count=1, memory_mib=1)
    least = min(known.shared_memory_bytes for known in ARCHITECTURES.values() if known.backend == backend)
    assert device.backend == backend
    assert device.shared_memory_bytes == least


def test_model_ignores_the_power_cap_alone() -> None:
    assert replace(NVIDIA_H200, power_cap_watts=500).model == NVIDIA_H200.model
    for change in ({"name": "NVIDIA H100"}, {"arch": "sm_80"}, {"sm_count": 114}, {"memory_mib": 1}):
        assert replace(NVIDIA_H200, **change).model != NVIDIA_H200.model


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "nvidia_h200"),
        ("NVIDIA A100-SXM4-80GB", "nvidia_a100_sxm4_80gb"),
        ("../etc (x)", "etc_x"),
    ],
)
def test_slug_is_a_folder(name: str, slug: str) -> None:
    assert replace(NVIDIA_H200, name=name).slug == slug
