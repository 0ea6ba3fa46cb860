"""Reads the GPU and the toolchain of this machine; nothing is read before it is asked for."""

import importlib.metadata
import os
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from autotune.device import Device
from autotune.errors import MissingDependencyError
from autotune.trial import Conditions, Toolchain
from autotune.version import VERSION

NO_GPU = "no GPU is visible; name a device (device='NVIDIA H200') or run `autotune doctor`"


def has_gpu() -> bool:
    """Whether torch can use a CUDA or ROCm device; creates no context in this process."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@cache
def current_device(index: int = 0) -> Device:
    """The GPU of that index as tables identify it.

    Raises:
        MissingDependencyError: there is no torch or no GPU.
    """
    try:
        import torch
    except ImportError:
        raise MissingDependencyError("torch is not installed; `pip install attention-autotune[gpu]`") from None
    if not torch.cuda.is_available():
        raise MissingDependencyError(NO_GPU)
    properties = torch.cuda.get_device_properties(index)
    is_hip = torch.version.hip is not None
    device = Device(
        name=properties.name,
        arch=properties.gcnArchName.split(":")[0] if is_hip else f"sm_{properties.major}{properties.minor}",
        sm_count=properties.multi_processor_count,
        memory_mib=properties.total_memory // 2**20,
    )
    handle = None if is_hip else _nvml_handle(str(properties.uuid))
    if handle is None:
        return device
    import pynvml

    cap = _ask(pynvml.nvmlDeviceGetPowerManagementLimit, handle)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return replace(
        device,
        memory_mib=device.memory_mib if memory is None else memory.total // 2**20,
        power_cap_watts=None if cap is None else cap // 1000,
    )


@cache
def toolchain() -> Toolchain:
    """Versions of everything that compiles or runs a kernel here; asks packages, not the GPU, where it can."""
    return Toolchain(
        tool=VERSION,
        triton=_version("triton"),
        ptxas=_ptxas_version(),
        torch=_version("torch"),
        cuda=_cuda_version(),
        driver=_driver_version(),
    )


def conditions(index: int = 0) -> Conditions:
    """Clocks, temperature, throttle reasons, and whether another process computes on the GPU; empty without NVML."""
    import torch

    handle = None if torch.version.hip else _nvml_handle(str(torch.cuda.get_device_properties(index).uuid))
    if handle is None:
        return Conditions()
    import pynvml

    others = [process.pid for process in _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []]
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
    return Conditions(
        sm_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        throttle_reasons=_name_reasons(reasons),
        contended=len(others) > 1,
    )


def _name_reasons(mask: int) -> str:
    """NVML's clock event bits as words; idle and application clocks are no throttling."""
    names = {0x4: "power", 0x8: "hardware", 0x20: "thermal", 0x40: "thermal", 0x80: "power brake"}
    return ", ".join(sorted({name for bit, name in names.items() if mask & bit}))


@cache
def _nvml_handle(uuid: str) -> Any:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except Exception:  # no package, no driver, or a GPU NVML does not manage: times are still right without it
        return None


def _ask(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception:  # NVML refuses single questions on some boards
        return None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cuda_version() -> str:
    try:
        import torch
    except ImportError:
        return ""
    return torch.version.cuda or torch.version.hip or ""


def _driver_version() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:
        return ""


def _ptxas_version() -> str:
    """The release of the assembler that Triton calls: its own unless TRITON_PTXAS_PATH names another."""
    path = os.environ.get("TRITON_PTXAS_PATH")
    try:
        if path is None:
            triton = importlib.metadata.distribution("triton").locate_file("triton")
            path = str(Path(str(triton)) / "backends" / "nvidia" / "bin" / "ptxas")
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (importlib.metadata.PackageNotFoundError, OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"V([\d.]+)", text)
    return found[1] if found else ""
