"""Answers of the driver before torch is imported: those that torch would give, or none."""

import ctypes
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.platforms import nvidia, without_torch
from tests.platforms.fake_machine import FakeNVML, install, running

NUMBER = uuid.UUID("12345678-1234-5678-1234-567812345678")
FACTS = {16: 132, 75: 9, 76: 0}  # as cuda.h numbers them


class FakeDriver:
    """``libcuda`` with one H200: it fails where it is told to, and notes its calls."""

    def __init__(self, *fails: str, version: int = 13000, name: bytes = b"NVIDIA H200") -> None:
        self.called: list[str] = []
        self._fails = fails
        self._version, self._name = version, name

    def __getattr__(self, function: str) -> Any:
        def call(*arguments: Any) -> int:
            self.called.append(function)
            if function in self._fails:
                return 999
            match function, arguments:
                case "cuDriverGetVersion", (into,):
                    into._obj.value = self._version
                case "cuDeviceGetName", (into, _, _):
                    into.value = self._name
                case "cuDeviceTotalMem_v2", (into, _):
                    into._obj.value = 150_000 * 2**20
                case "cuDeviceGetUuid", (into, _):
                    into._obj[:] = NUMBER.bytes
                case "cuDeviceGetAttribute", (into, number, _):
                    into._obj.value = FACTS[number]
            return 0

        return call


@pytest.fixture(autouse=True)
def cuda_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch is built for CUDA 13.0; NVML knows the GPU, and what was read of it is forgotten."""
    monkeypatch.setattr(without_torch, "torch_targets", lambda: ("13.0", None))
    monkeypatch.setattr(nvidia, "torch_targets", lambda: ("13.0", None))
    monkeypatch.setattr(nvidia.Nvidia, "driver_files", ("/dev/null",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    nvidia._nvml_handle.cache_clear()
    yield
    nvidia._nvml_handle.cache_clear()


def load(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, nvml: object) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    install(monkeypatch, pynvml=nvml)


def test_the_gpu_is_the_one_that_tables_know(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, driver = FakeNVML(), FakeDriver()
    load(monkeypatch, driver, nvml)
    found = platforms.find_gpu(0)
    assert found is not None
    assert found.device == NVIDIA_H200
    assert f"nvmlDeviceGetHandleByUUID ('GPU-{NUMBER}',)" in nvml.asked
    assert "cuDevicePrimaryCtxRetain" not in driver.called


def test_without_nvml_the_driver_says_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, FakeDriver(), None)
    found = platforms.find_gpu(0)
    assert found is not None
    assert (found.device.memory_mib, found.device.power_cap_watts) == (150_000, None)


def test_our_process_is_the_one_that_appears_as_the_context_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()

    def listed(handle: str) -> object:
        return running(*((7, 4711) if "cuDevicePrimaryCtxRetain" in driver.called else (7,)))

    nvml = FakeNVML(
        nvmlDeviceGetCount=1, nvmlDeviceGetHandleByIndex="board", nvmlDeviceGetComputeRunningProcesses=listed
    )
    load(monkeypatch, driver, nvml)
    found = platforms.find_gpu(0)
    assert found is not None
    assert found.open() == 4711


@pytest.mark.parametrize(
    "driver",
    [
        FakeDriver("cuInit"),
        FakeDriver("cuDeviceGet"),
        FakeDriver("cuDeviceGetUuid"),
        FakeDriver(version=12080),
        FakeDriver(name=b"NVIDIA H200 MIG 1g.18gb"),
    ],
    ids=["no driver", "no such GPU", "no number", "older than torch's CUDA", "a part of a GPU"],
)
def test_where_the_driver_cannot_say_torch_is_asked(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    load(monkeypatch, driver, FakeNVML())
    assert platforms.find_gpu(0) is None


def test_a_torch_that_is_not_built_for_cuda_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    load(monkeypatch, driver, FakeNVML())
    monkeypatch.setattr(without_torch, "torch_targets", lambda: (None, "7.0"))
    assert platforms.find_gpu(0) is None
    assert driver.called == []


@pytest.mark.parametrize("shown", [None, "0", "2,3", "1,9,0", "4", "3,3", "GPU-b1c2", "0, 1", "-1", "", "0,-1,1"])
def test_gpus_are_counted_as_torch_counts_them(monkeypatch: pytest.MonkeyPatch, shown: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: 4)
    monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: None)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    counted = without_torch.count_visible(4, shown)
    assert counted in (None, torch.cuda._device_count_nvml())
    assert (counted is None) == (shown not in (None, "0", "2,3", "1,9,0", "4"))


def test_the_file_of_torchs_version_says_what_torch_says() -> None:
    code = (
        "import sys; from autotune.platforms import toolchain; from autotune.platforms.without_torch import "
        "torch_targets; found = [*torch_targets(), toolchain().cuda]; assert 'torch' not in sys.modules; print(*found)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version = torch.version
    assert done.stdout.split() == [str(version.cuda), str(version.hip), *filter(None, [version.cuda or version.hip])]


@pytest.mark.parametrize(("count", "expected"), [(1, True), (0, False)])
def test_a_gpu_is_looked_for_without_torch(count: int, expected: bool) -> None:
    code = f"""
import sys
from autotune import platforms
from autotune.platforms import nvidia
nvidia.Nvidia.driver_files = ("/dev/null",)
nvidia.torch_targets = lambda: ("13.0", None)
nvidia._ask = lambda question, *arguments: {count}
print(platforms.has_gpu(), "torch" in sys.modules)
"""
    shown = {name: value for name, value in os.environ.items() if not name.endswith("VISIBLE_DEVICES")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=shown)
    assert done.stdout.split() == [str(expected), "False"]
