"""Vendors differ behind one interface alone: no other module names one, and a name never becomes another vendor's."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.device import ARCHITECTURES
from autotune.errors import UnknownNameError
from autotune.platforms import (
    PLATFORMS,
    data_sheets,
    is_named,
    known_device,
    known_devices,
    plain_name,
    platform_of,
    target_device,
)
from autotune.platforms.nvidia import Nvidia

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ("autotune", "kernels", "search_spaces")
VENDORS: Final = re.compile(r"nvidia|amd|hip|rocm|sm_\d*|gfx\w*", re.IGNORECASE)
VENDOR_LIBRARIES: Final = {"pynvml", "amdsmi"}
VENDOR_MODULES: Final = ("autotune.platforms.nvidia", "autotune.platforms.amd")
ALLOWED: Final = {
    "autotune/platforms": "the vendors themselves",
    "autotune/device.py": "the device that the shipped sweeps were recorded on",
    "autotune/dispatch/devices.py": "hip is one of torch's words for devices, which it refuses",
    "kernels/flash_attention/triton_split_keys/launch.py": "instructions of one vendor, by Triton's own target",
    "kernels/paged_decode/triton/launch.py": "instructions of one vendor, by Triton's own target",
    "kernels/baselines": "libraries of one vendor",
    "autotune/lab/suites/cudnn_paged.py": "a library of one vendor",
    "search_spaces/flash_attention/flex.py": "torch's own tables, by architecture",
}


def names_of_vendors(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find strings that are a vendor's name, imports of its libraries, and torch's word of who it is built for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and VENDORS.fullmatch(node.value):
            yield node.lineno, repr(node.value)
        elif isinstance(node, ast.Attribute) and node.attr in ("hip", "cuda") and "version" in ast.unparse(node.value):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            for name in [module or "", *(alias.name for alias in node.names)]:
                if name.partition(".")[0] in VENDOR_LIBRARIES or name.startswith(VENDOR_MODULES):
                    yield node.lineno, name


def branches_on_vendors(root: Path) -> list[str]:
    """List where a module outside those that are allowed names a vendor."""
    found = []
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):  # does not follow the links inside autotune
            name = path.relative_to(root).as_posix()
            if not any(name == allowed or name.startswith(f"{allowed}/") for allowed in ALLOWED):
                tree = ast.parse(path.read_text(encoding="utf-8"), name)
                found += [f"{name}:{line}: {text}" for line, text in names_of_vendors(tree)]
    return found


def test_no_module_names_a_vendor_but_the_platforms() -> None:
    assert branches_on_vendors(ROOT) == []


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ('is_hip = device.backend == "hip"', True),
        ('old = device.arch.startswith("sm_")', True),
        ('hopper = device.arch == "sm_90"', True),
        ('cdna = device.arch.startswith("gfx9")', True),
        ("import torch\nis_amd = torch.version.hip is not None", True),
        ("def read():\n    import pynvml", True),
        ("from autotune.platforms.amd import Amd", True),
        ("from autotune.platforms import current_device", False),
        ('tensor = torch.zeros(1, device="cuda")', False),
        ('MESSAGE = "for example an NVIDIA H200, which is sm_90"', False),
        ('deep = device.has("async_copies")', False),
    ],
)
def test_the_rule_sees_a_branch_on_a_vendor(tmp_path: Path, text: str, is_found: bool) -> None:
    path = tmp_path / "autotune" / "search" / "plan.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert bool(branches_on_vendors(tmp_path)) == is_found


def test_every_exception_exists() -> None:
    rooms = [name for name in ALLOWED if not name.startswith("autotune/lab/") or (ROOT / "autotune/lab").exists()]
    assert [name for name in rooms if not (ROOT / name).exists()] == []


def test_every_architecture_has_a_platform_and_a_target() -> None:
    for name, found in ARCHITECTURES.items():
        platform = platform_of(found)
        assert platform.name == found.platform
        assert platform.find_architecture(name) == found
        assert platform.target(found).warp_size == found.warp_size


def test_devices_of_data_sheets_are_known_by_name_with_their_own_architecture() -> None:
    found = {name: (sheet.device.arch, sheet.device.sm_count) for name, sheet in data_sheets().items()}
    assert found == {
        "NVIDIA A100-SXM4-80GB": ("sm_80", 108),
        "NVIDIA H100 80GB HBM3": ("sm_90", 132),
        "NVIDIA H200": ("sm_90", 132),
        "AMD Instinct MI300X": ("gfx942", 304),
    }
    for name, sheet in data_sheets().items():
        assert known_device(name) == known_device(name.lower()) == sheet.device
        assert sheet.device.arch in ARCHITECTURES
    for name in ("Intel Data Center GPU Max 1550", "", "NVIDIA", "A1000", "H10", "sm_8", "gfx94", "H200 NVL"):
        assert known_device(name) is None


def test_no_name_means_two_devices() -> None:
    names = [
        (plain_name(name), device.name)
        for vendor in PLATFORMS.values()
        for device, others in vendor.devices.items()
        for name in (device.name, *others)
    ]
    assert len({name for name, _ in names}) == len(names)
    assert all(known_device(name) is not None for name, _ in names)
    for device in known_devices():
        assert device.arch in ARCHITECTURES
        assert [other.name for other in known_devices() if is_named(other, device.name)] == [device.name]


def test_an_architecture_stands_for_the_least_of_its_devices() -> None:
    for name, found in ARCHITECTURES.items():
        device = target_device(name)
        alike = [known for known in known_devices() if known.arch == name]
        assert (device.name, device.arch, device.shared_memory_bytes) == (name, name, found.shared_memory_bytes)
        assert all(device.sm_count <= known.sm_count and device.memory_mib <= known.memory_mib for known in alike)
    assert (target_device("sm_89").sm_count, target_device("sm_87").sm_count) == (58, 1)
    with pytest.raises(UnknownNameError, match="target='sm_10' is unknown; allowed: sm_80, "):
        target_device("sm_10")


@pytest.mark.parametrize(
    ("platform", "asm", "resources", "code"),
    [
        ("gfx942", {"amdgcn": ".vgpr_count:     84\n.private_segment_fixed_size: 16", "hsaco": b"x"}, (84, 16), b"x"),
        ("gfx942", {}, (None, None), None),
        ("sm_90", {"cubin": b"no binary"}, (None, None), b"no binary"),
    ],
)
def test_resources_are_read_from_what_the_compiler_made(
    platform: str, asm: dict[str, Any], resources: tuple[int | None, int | None], code: bytes | None
) -> None:
    found = platform_of(ARCHITECTURES[platform])
    assert (found.read_resources(asm), found.machine_code(asm)) == (resources, code)


def test_cuobjdump_says_what_a_thread_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Function _attend:\n REG:168 STACK:24 SHARED:0 LOCAL:0"
    monkeypatch.setattr("autotune.platforms.nvidia._run", lambda *command: text)
    assert Nvidia().read_resources({"cubin": b""}) == (168, 24)
