"""Devices are told apart by what tables say of them, and know their limits without a GPU."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.device import ARCHITECTURES, CAPABILITIES, NVIDIA_H200, Device, architecture
from autotune.errors import UnknownNameError
from autotune.platforms import platform_of
from autotune.space import Parameter


# CUDA C++ Programming Guide, compute capabilities, maximum shared memory per thread block; AMD CDNA3 and CDNA4 guides.
@pytest.mark.parametrize(
    ("arch", "kibibytes", "target", "columns"),
    [
        ("sm_80", 163, ("cuda", 80, 32), 0),
        ("sm_86", 99, ("cuda", 86, 32), 0),
        ("sm_89", 99, ("cuda", 89, 32), 0),
        ("sm_90", 227, ("cuda", 90, 32), 0),
        ("sm_100", 227, ("cuda", 100, 32), 512),
        ("sm_110", 227, ("cuda", 110, 32), 512),
        ("sm_120", 99, ("cuda", 120, 32), 0),
        ("gfx942", 64, ("hip", "gfx942", 64), 0),
        ("gfx950", 160, ("hip", "gfx950", 64), 0),
    ],
)
def test_architectures(arch: str, kibibytes: int, target: tuple[str, int | str, int], columns: int) -> None:
    found = architecture(arch)
    assert found.shared_memory_bytes == kibibytes * 1024
    assert (platform_of(found).target(found), found.tensor_memory_columns) == (target, columns)
    device = replace(NVIDIA_H200, arch=arch)
    assert (device.shared_memory_bytes, device.warp_size) == (kibibytes * 1024, target[2])
    assert device.architecture == found


@pytest.mark.parametrize(
    ("capability", "archs"),
    [
        ("async_copies", "sm_80 sm_86 sm_89 sm_90 sm_100 sm_120"),
        ("fp8_e4m3", "sm_89 sm_90 sm_100 sm_120 gfx942 gfx950"),
        ("tensor_maps", "sm_90 sm_100 sm_120"),
        ("dependent_launch", "sm_90 sm_100 sm_120"),
        ("wgmma", "sm_90"),
        ("tensor_memory", "sm_100"),
        ("wave_hints", "gfx942 gfx950"),
        ("float32_products", "gfx942 gfx950"),
    ],
)
def test_capabilities(capability: str, archs: str) -> None:
    asked = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")
    assert [arch for arch in asked if replace(NVIDIA_H200, arch=arch).has(capability)] == archs.split()


def test_capabilities_have_names() -> None:
    known = set().union(*(found.capabilities for found in ARCHITECTURES.values()))
    assert known == CAPABILITIES.keys()
    with pytest.raises(UnknownNameError, match="capability='nvidia' is unknown; allowed: async_copies, "):
        NVIDIA_H200.has("nvidia")


def test_newer_architectures_are_those_of_one_vendor() -> None:
    archs = ("sm_80", "sm_90", "sm_100", "sm_999", "gfx90a", "gfx942", "gfx950", "gfx1201")
    devices = [replace(NVIDIA_H200, arch=arch) for arch in archs]
    assert [device.arch for device in devices if device.is_from("sm_90")] == ["sm_90", "sm_100", "sm_999"]
    assert [device.arch for device in devices if device.is_from("gfx942")] == ["gfx942", "gfx950", "gfx1201"]


def test_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"target='sm_10' is unknown; allowed: sm_80, .*gfx950"):
        architecture("sm_10")


@pytest.mark.parametrize(
    ("arch", "platform", "warp_size"),
    [("sm_999", "nvidia", 32), ("sm_75", "nvidia", 32), ("gfx9999", "amd", 64), ("gfx1100", "amd", 32)],
)
def test_an_unlisted_architecture_has_the_least_of_its_vendor(arch: str, platform: str, warp_size: int) -> None:
    device = Device(name="new", arch=arch, sm_count=1, memory_mib=1)
    least = min(known.shared_memory_bytes for known in ARCHITECTURES.values() if known.platform == platform)
    assert device.architecture.platform == platform
    assert (device.shared_memory_bytes, device.warp_size) == (least, warp_size)


@pytest.mark.parametrize("arch", ["xe2", "foo", "", "sm_", "sm_x", "gfx", "SM_90", "cuda", "apple_m4"])
def test_another_vendor_is_refused_by_name(arch: str) -> None:
    """It is never taken for one that is supported; but its rows can be read and shown."""
    device = Device(name="Intel Data Center GPU Max 1550", arch=arch, sm_count=1, memory_mib=1)
    assert (device.slug, device.model[1]) == ("intel_data_center_gpu_max_1550", arch)
    questions: list[Callable[[], object]] = [
        lambda: device.shared_memory_bytes,
        lambda: device.warp_size,
        lambda: device.has("wave_hints"),
        lambda: device.architecture,
        lambda: Parameter("kpack", (1, 2), needs="wave_hints").choices(device),
    ]
    for question in questions:
        with pytest.raises(UnknownNameError, match=f"arch='{arch}' belongs to no vendor that is supported; .*sm_80"):
            question()


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


def test_memory_is_a_fact_beside_the_identity() -> None:
    of_another_driver = replace(NVIDIA_H200, memory_mib=NVIDIA_H200.memory_mib - 4)
    assert of_another_driver == NVIDIA_H200
    assert len({of_another_driver, NVIDIA_H200}) == 1
    a100 = replace(NVIDIA_H200, name="NVIDIA A100-SXM4-80GB", memory_mib=81_920)
    assert replace(a100, memory_mib=81_251) == a100  # drivers before and since 525
    assert replace(NVIDIA_H200, power_cap_watts=500) != NVIDIA_H200
    small, large = (replace(NVIDIA_H200, name="NVIDIA GeForce RTX 4060 Ti", memory_mib=mib) for mib in (8188, 16380))
    assert small != large
    assert NVIDIA_H200 != "NVIDIA H200"
