"""Differences of vendors behind one interface: ``Platform``, a module for each vendor; and the facts of this machine.

Vendors are found by an architecture, by a device's name, or by the torch that is installed. No other module names one.
Nothing of the machine is read before it is asked for.
"""

import contextlib
import difflib
import importlib.metadata
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal

from autotune.device import ARCHITECTURES, Architecture, Device, add_architectures, architecture
from autotune.errors import MissingDependencyError
from autotune.platforms.amd import Amd
from autotune.platforms.interface import DataSheet, FoundGpu, Platform, own_pid
from autotune.platforms.nvidia import Nvidia, ptxas_version
from autotune.platforms.without_torch import torch_targets
from autotune.trial import Conditions, Toolchain
from autotune.version import VERSION

PLATFORMS: Final[Mapping[str, Platform]] = {vendor.name: vendor for vendor in (Nvidia(), Amd())}
ASSUMED_ARCH: Final = "sm_80"  # of a device of which only the name is known
NO_GPU: Final = "no GPU is visible; name a device (device='NVIDIA H200') or run `autotune doctor`"
TYPO_RATIO: Final = 0.9  # difflib's, of names with a letter missing, doubled or swapped
SAMPLE_SECONDS: Final = 1.0  # drivers sample which processes compute about so often

for _vendor in PLATFORMS.values():
    add_architectures(_vendor.architectures, _vendor.find_architecture)


def platform_of(architecture: Architecture) -> Platform:
    return PLATFORMS[architecture.platform]


def platform_here() -> Platform:
    """Return the platform that the installed torch is built for."""
    import torch

    return PLATFORMS[Nvidia.name if torch.version.hip is None else Amd.name]


@cache
def data_sheets() -> Mapping[str, DataSheet]:
    """Return the data sheets of all vendors, by the name of their device."""
    return {sheet.device.name: sheet for vendor in PLATFORMS.values() for sheet in vendor.data_sheets}


@cache
def known_device(name: str) -> Device | None:
    """Return the device that a name means; None for one that is not known.

    A name is that of a known device, or another usual one of it, in any case and with or without its brand; or that of
    a listed architecture, whose device has as few SMs and as little memory as any known one.

    Example:
        >>> known_device("mi300x").arch, known_device("A100").name, known_device("sm_89").sm_count
        ('gfx942', 'NVIDIA A100-SXM4-80GB', 58)
    """
    asked = plain_name(name)
    for vendor in PLATFORMS.values():
        for device, others in vendor.devices.items():
            if asked and asked in map(plain_name, (device.name, *others)):
                return device
    return next((_device_of(each) for each in ARCHITECTURES.values() if asked == plain_name(each.name)), None)


def known_devices() -> list[Device]:
    """List the devices that are known by name."""
    return [device for vendor in PLATFORMS.values() for device in vendor.devices]


def target_device(name: str) -> Device:
    """Return the device to compile for, as ``known_device`` does; UnknownNameError for one that is not known."""
    return known_device(name) or _device_of(architecture(name))


def is_named(device: Device, name: str) -> bool:
    """Return if a name means a device: its own, in any case and with or without its brand, or another usual one.

    Example:
        >>> is_named(NVIDIA_H200, "h200"), is_named(NVIDIA_H200, "H100")
        (True, False)
    """
    known = known_device(name)
    asked = {plain_name(name), "" if known is None else plain_name(known.name)} - {""}
    return plain_name(device.name) in asked


def did_you_mean(name: str, devices: Iterable[Device]) -> str:
    """Return the end of an error about a name: the devices of which it may be a part or a misspelling; else nothing.

    Never another model, which has another number.

    Example:
        >>> did_you_mean("NVIDA H200", [NVIDIA_H200])
        "; did you mean 'NVIDIA H200'?"
    """
    asked = " ".join(name.split()).lower()
    near = sorted(known for known in {device.name for device in devices} if _is_like(asked, known.lower()))
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _is_like(asked: str, known: str) -> bool:
    if _numbers(asked) != _numbers(known):
        return False
    return asked in known or difflib.SequenceMatcher(None, asked, known).ratio() >= TYPO_RATIO


def _numbers(name: str) -> set[str]:
    """Return the words with a digit, which tell models apart: ``{"h200"}``."""
    return set(re.findall(r"[a-z]*\d[a-z\d]*", name))


def plain_name(name: str) -> str:
    """Strip a device's name of what makes no difference: case, blanks and dashes, and the words of its brand.

    Example:
        >>> plain_name("NVIDIA GeForce RTX 4090")
        'rtx4090'
    """
    brands = frozenset().union(*(vendor.brands for vendor in PLATFORMS.values()))
    words = name.casefold().replace("_", " ").replace("-", " ").split()
    return "".join(word for word in words if word not in brands)


def _device_of(found: Architecture) -> Device:
    """Return the least device of an architecture, by its name; nothing is recorded on one of that name."""
    alike = [device for device in known_devices() if device.arch == found.name]
    sm_count = min((device.sm_count for device in alike), default=1)
    memory = min((device.memory_mib for device in alike), default=1)
    return Device(name=found.name, arch=found.name, sm_count=sm_count, memory_mib=memory)


def has_driver() -> bool:
    """Return if there may be a GPU, without torch, whose import takes seconds: where a driver is loaded.

    Elsewhere than on Linux that is not known without torch: then there is nothing to start ahead for.
    """
    return sys.platform == "linux" and any(vendor.has_driver() for vendor in PLATFORMS.values())


def has_gpu() -> bool:
    """Return if torch can use a GPU; creates no context in this process, and imports no torch where it need not."""
    if sys.platform == "linux" and not has_driver():
        return False
    if "torch" not in sys.modules and sys.platform == "linux":  # its import takes seconds
        counts = [vendor.count_gpus() for vendor in PLATFORMS.values() if vendor.has_driver()]
        if (count := next((each for each in counts if each is not None), None)) is not None:
            return count > 0
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def gpu_count() -> int:
    """Return how many GPUs torch can use, as ``has_gpu`` finds that out."""
    if not has_gpu():
        return 0
    if "torch" not in sys.modules and sys.platform == "linux":
        counts = [vendor.count_gpus() for vendor in PLATFORMS.values() if vendor.has_driver()]
        if (count := next((each for each in counts if each is not None), None)) is not None:
            return count
    import torch

    return torch.cuda.device_count()


def current_device(index: int | None = None) -> Device:
    """Return a GPU as tables identify it, by default torch's current one; each is read once.

    Raises:
        MissingDependencyError: there is no torch or no GPU.

    Example (on a GPU):
        >>> current_device(tensor.device.index).name
        'NVIDIA H200'
    """
    return _read_device(current_index() if index is None else index)


def current_index() -> int:
    """Return the index of torch's current GPU; 0 before this process uses one, which this call does not begin."""
    global _ask_index
    if _ask_index is None:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return 0
        is_alone = torch._C._cuda_getDeviceCount() == 1
        _ask_index = 0 if is_alone else torch._C._cuda_getDevice  # as current_device(), which asks first if it may
    return _ask_index() if _ask_index else 0


# Once this process uses a GPU, which it does until its end: what asks torch, or 0 where there is no other GPU to use.
_ask_index: Callable[[], int] | Literal[0] | None = None


def _forget_torch() -> None:
    global _ask_index
    _ask_index = None  # a fork cannot use the GPU that its parent used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_torch)


@cache
def _read_device(index: int) -> Device:
    try:
        import torch
    except ImportError:
        raise MissingDependencyError('torch is not installed; pip install ".[gpu]" in the clone') from None
    if not torch.cuda.is_available():
        raise MissingDependencyError(NO_GPU)
    return platform_here().read_device(index)


def find_gpu(index: int) -> FoundGpu | None:
    """Return the GPU of that index as ``current_device`` does, without torch; None where torch must be asked."""
    found = (vendor.find_gpu(index) for vendor in PLATFORMS.values() if vendor.has_driver())
    return next(filter(None, found), None) if sys.platform == "linux" else None


def open_context(index: int = 0) -> int | None:
    """Create this process's context on a GPU; returns the pid by which the driver lists it, or None if it does not."""
    import torch

    before = platform_here().processes()
    torch.zeros(1, device=f"cuda:{index}")
    return own_pid(before, platform_here().processes(index))


def is_context_alive(index: int = 0) -> bool:
    """Return if this process's context on a GPU still works; an error that stuck to it comes back at every call."""
    import torch

    for _ in range(2):  # an error that did not stick may have been left for the first call to report
        try:
            torch.cuda.synchronize(index)
            torch.zeros(1, device=f"cuda:{index}").add_(1).item()
        except torch.cuda.OutOfMemoryError:
            return True  # full, not broken
        except Exception:
            continue
        return True
    return False


class Watch:
    """Reads a GPU's state at both ends of a stretch of time, of which the worse counts; empty where it is unknown.

    Args:
        own_pid: what ``open_context`` returned.
    """

    def __init__(self, own_pid: int | None, index: int = 0) -> None:
        self._own_pid = own_pid
        self._index = index
        self._platform = platform_here()
        self._started = time.time()
        self._before = self._platform.read_conditions(index)

    def end(self) -> Conditions:
        """Return lowest clocks, highest temperature, every throttle reason, and if another process computed."""
        before, after = self._before, self._platform.read_conditions(self._index)
        reasons = {*before.throttle_reasons.split(", "), *after.throttle_reasons.split(", ")} - {""}
        used = None
        if self._own_pid is not None:
            used = self._platform.others_computed(self._index, self._own_pid, self._started - SAMPLE_SECONDS)
        return Conditions(
            sm_clock_mhz=_of_both(min, before.sm_clock_mhz, after.sm_clock_mhz),
            memory_clock_mhz=_of_both(min, before.memory_clock_mhz, after.memory_clock_mhz),
            temperature_c=_of_both(max, before.temperature_c, after.temperature_c),
            throttle_reasons=", ".join(sorted(reasons)),
            contended=before.contended or after.contended if used is None else used,
        )


def _of_both(worse: Callable[[int, int], int], before: int | None, after: int | None) -> int | None:
    return before if after is None else after if before is None else worse(before, after)


def processor_name() -> str:
    """Return this machine's processor and how many of its cores this process may use.

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
    """Return the versions of everything that compiles or runs a kernel here; asks packages, not the GPU, if it can."""
    return Toolchain(
        tool=VERSION,
        triton=_version("triton"),
        ptxas=ptxas_version(),
        torch=_version("torch"),
        cuda=_runtime_version(),
        driver=next(filter(None, (vendor.driver_version() for vendor in PLATFORMS.values())), ""),
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _runtime_version() -> str:
    """Return the version of CUDA or ROCm that torch is built for."""
    torch = sys.modules.get("torch")
    return next(filter(None, (torch.version.cuda, torch.version.hip) if torch else torch_targets()), "")
