"""Reads the GPU and the toolchain of this machine; nothing is read before it is asked for."""

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from autotune.device import Device
from autotune.errors import MissingDependencyError
from autotune.trial import Conditions, Toolchain
from autotune.version import VERSION

NO_GPU = "no GPU is visible; name a device (device='NVIDIA H200') or run `autotune doctor`"
# What drivers offer on Linux: NVIDIA's on servers, on Jetson, and in WSL, and AMD's.
DRIVER_FILES: Final = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")
SAMPLE_SECONDS: Final = 1.0  # NVML samples who computes about so often


def has_gpu() -> bool:
    """Whether torch can use a CUDA or ROCm device; creates no context in this process."""
    if sys.platform == "linux" and not any(map(os.path.exists, DRIVER_FILES)):
        return False  # without torch, whose import takes a second or more
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
        raise MissingDependencyError('torch is not installed; pip install ".[gpu]" in the clone') from None
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


def processor_name() -> str:
    """This machine's processor and how many of its cores this process may use.

    Example:
        >>> processor_name()
        'Intel(R) Xeon(R) Platinum 8581C, 2 cores'
    """
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores"


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


def open_context(index: int = 0) -> int | None:
    """Create this process's context on the GPU; returns the pid by which NVML lists it, None where that is not told.

    In a container NVML's numbers are the host's: ours is the one that appears as the context does.
    """
    import torch

    before = _pids(*_all_nvml_handles())  # of every GPU: torch may be shown but one of them
    torch.zeros(1, device=f"cuda:{index}")
    now = _pids(_gpu_handle(index))
    appeared = now - before
    if len(appeared) == 1:
        return appeared.pop()
    return os.getpid() if os.getpid() in now else None


def is_context_alive(index: int = 0) -> bool:
    """Whether this process's context on the GPU still works; an error that stuck to it comes back at every call.

    Asked twice, since an error that did not stick may have been left for the first call to report.
    """
    return _can_compute(index) or _can_compute(index)


def _can_compute(index: int) -> bool:
    import torch

    try:
        torch.cuda.synchronize(index)
        torch.zeros(1, device=f"cuda:{index}").add_(1).item()
    except torch.cuda.OutOfMemoryError:
        return True  # full, not broken
    except Exception:
        return False
    return True


class Watch:
    """The GPU's state over a stretch of time: read at its two ends, of which the worse counts; empty without NVML.

    Args:
        own_pid: what ``open_context`` returned.
    """

    def __init__(self, own_pid: int | None, index: int = 0) -> None:
        self._own_pid = own_pid
        self._handle = _gpu_handle(index)
        self._started = time.time()
        self._before = _read_conditions(self._handle)

    def end(self) -> Conditions:
        """Lowest clocks, highest temperature, every throttle reason, and whether another process computed."""
        before, after = self._before, _read_conditions(self._handle)
        reasons = {*before.throttle_reasons.split(", "), *after.throttle_reasons.split(", ")} - {""}
        used = self._others_computed()
        return Conditions(
            sm_clock_mhz=_of_both(min, before.sm_clock_mhz, after.sm_clock_mhz),
            memory_clock_mhz=_of_both(min, before.memory_clock_mhz, after.memory_clock_mhz),
            temperature_c=_of_both(max, before.temperature_c, after.temperature_c),
            throttle_reasons=", ".join(sorted(reasons)),
            contended=before.contended or after.contended if used is None else used,
        )

    def _others_computed(self) -> bool | None:
        """Whether another process kept the GPU busy; None where NVML does not say or our own pid is unknown."""
        if self._handle is None or self._own_pid is None:
            return None
        import pynvml

        since = int((self._started - SAMPLE_SECONDS) * 1e6)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._handle, since)
        except Exception as error:
            silent = (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND)  # supported, and nobody computed
            return False if getattr(error, "value", None) in silent else None
        return any(sample.pid != self._own_pid and sample.smUtil > 0 for sample in samples)


def _read_conditions(handle: Any) -> Conditions:
    """The state at this moment; another process that holds a context counts as contention here."""
    if handle is None:
        return Conditions()
    import pynvml

    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
    return Conditions(
        sm_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        throttle_reasons=_name_reasons(reasons),
        contended=len(_pids(handle)) > 1,
    )


def _of_both(worse: Callable[[int, int], int], before: int | None, after: int | None) -> int | None:
    return before if after is None else after if before is None else worse(before, after)


def _pids(*handles: Any) -> set[int]:
    """Processes that hold a context on these GPUs, by NVML's numbers."""
    known = [handle for handle in handles if handle is not None]
    if not known:
        return set()
    import pynvml

    return {
        process.pid for handle in known for process in _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    }


def _name_reasons(mask: int) -> str:
    """NVML's clock event bits as words; idle and application clocks are no throttling."""
    names = {0x4: "power", 0x8: "hardware", 0x20: "thermal", 0x40: "thermal", 0x80: "power brake"}
    return ", ".join(sorted({name for bit, name in names.items() if mask & bit}))


def _gpu_handle(index: int) -> Any:
    """NVML's handle of a GPU as torch counts them; None without NVML and on AMD."""
    import torch

    return None if torch.version.hip else _nvml_handle(str(torch.cuda.get_device_properties(index).uuid))


def _all_nvml_handles() -> list[Any]:
    try:
        import pynvml

        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # as below
        return []


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
