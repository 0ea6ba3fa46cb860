"""NVIDIA: architectures and data sheets, the state of a GPU by NVML, and the tools that come with Triton."""

import importlib.metadata
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from autotune.device import NVIDIA_H200, Architecture, Device
from autotune.platforms.interface import DataSheet, FoundGpu, Platform, Target, own_pid
from autotune.platforms.without_torch import DriverError, DriverGpu, count_visible, torch_targets
from autotune.trial import Conditions

NAME: Final = "nvidia"
WARP_SIZE: Final = 32
# KiB of shared memory per block by compute capability: CUDA C++ Programming Guide, table "Technical Specifications per
# Compute Capability" (opt-in maximum). One that is not listed has the least of these.
SHARED_KIB: Final = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
# The first compute capability that has each (ibid., and PTX ISA 8.7); of wgmma and tensor memory, the last one as well.
FIRST_WITH: Final = {"async_copies": 80, "fp8_e4m3": 89, "tensor_maps": 90, "dependent_launch": 90}
WGMMA: Final = range(90, 100)
TENSOR_MEMORY: Final = range(100, 120)
TENSOR_MEMORY_COLUMNS: Final = 512
SM_CLOCK, MEMORY_CLOCK, GPU_TEMPERATURE = 1, 2, 0  # as nvml.h numbers them
# The meaning of NVML's clock event bits; idle and application clocks are no throttling.
THROTTLE_REASONS: Final = {0x4: "power", 0x8: "hardware", 0x20: "thermal", 0x40: "thermal", 0x80: "power brake"}


def architecture_of(number: int) -> Architecture:
    """Return ``sm_N`` for a compute capability N, listed or not."""
    capabilities = {capability for capability, first in FIRST_WITH.items() if number >= first}
    capabilities |= {"wgmma"} if number in WGMMA else {"tensor_memory"} if number in TENSOR_MEMORY else set()
    return Architecture(
        name=f"sm_{number}",
        platform=NAME,
        generation=number,
        shared_memory_bytes=SHARED_KIB.get(number, min(SHARED_KIB.values())) * 1024,
        warp_size=WARP_SIZE,
        capabilities=frozenset(capabilities),
        tensor_memory_columns=TENSOR_MEMORY_COLUMNS if number in TENSOR_MEMORY else 0,
    )


def _data_sheet(device: Device, tflops: float, gbps: float) -> DataSheet:
    """A product of float32 is a sixth of the rate in 16 bits: our kernels make it of six in bfloat16, torch's efficient
    SDPA of three in TF32, whose rate is half of that in 16 bits (mem_eff_attention/gemm_kernel_utils.h). Where tensor
    cores multiply e4m3 its rate is twice that in 16 bits."""
    rates = {"float16": tflops, "bfloat16": tflops, "tf32": tflops / 2, "float32": tflops / 6}
    if "fp8_e4m3" in architecture_of(int(device.arch.removeprefix("sm_"))).capabilities:
        rates["float8_e4m3fn"] = 2 * tflops
    return DataSheet(device, rates, gbps)


A100: Final = Device(
    name="NVIDIA A100-SXM4-80GB", arch="sm_80", sm_count=108, memory_mib=80 * 1024, power_cap_watts=400
)
H100: Final = Device(
    name="NVIDIA H100 80GB HBM3", arch="sm_90", sm_count=132, memory_mib=80 * 1024, power_cap_watts=700
)


def _device(name: str, capability: int, sm_count: int, gib: int) -> Device:
    return Device(name=name, arch=f"sm_{capability}", sm_count=sm_count, memory_mib=gib * 1024)


# SMs and memory: the data sheets of each and the white papers of GA100, GA102, AD102, H100 and RTX Blackwell; compute
# capabilities: developer.nvidia.com/cuda-gpus. Other names of a device follow it; a name without a form is SXM's.
DEVICES: Final[Mapping[Device, tuple[str, ...]]] = {
    A100: ("A100", "A100 80GB", "A100 SXM", "A100 SXM4"),
    _device("NVIDIA A100-SXM4-40GB", 80, 108, 40): ("A100 40GB",),
    _device("NVIDIA A100 80GB PCIe", 80, 108, 80): (),
    _device("NVIDIA A10", 86, 72, 24): (),
    _device("NVIDIA A40", 86, 84, 48): (),
    _device("NVIDIA RTX A6000", 86, 84, 48): ("A6000",),
    _device("NVIDIA GeForce RTX 3090", 86, 82, 24): ("3090",),
    _device("NVIDIA L4", 89, 58, 24): (),
    _device("NVIDIA L40S", 89, 142, 48): (),
    _device("NVIDIA RTX 6000 Ada Generation", 89, 142, 48): ("RTX 6000 Ada",),
    _device("NVIDIA GeForce RTX 4090", 89, 128, 24): ("4090",),
    H100: ("H100", "H100 80GB", "H100 SXM", "H100 SXM5"),
    _device("NVIDIA H100 PCIe", 90, 114, 80): (),
    NVIDIA_H200: ("H200 SXM",),
    _device("NVIDIA GH200 480GB", 90, 132, 96): ("GH200",),
    _device("NVIDIA B200", 100, 148, 180): (),
    _device("NVIDIA GeForce RTX 5090", 120, 170, 32): ("5090",),
}


class Nvidia(Platform):
    """NVIDIA's GPUs, through CUDA and NVML (``nvidia-ml-py``); what NVML does not say is left out."""

    name = NAME
    driver_files = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg")  # on servers, on Jetson, and in WSL
    visibility = ("CUDA_VISIBLE_DEVICES",)
    memory_checker = "compute-sanitizer"
    binary = "cubin"
    launcher = "triton.backends.nvidia.driver"
    architectures = tuple(map(architecture_of, SHARED_KIB))
    # A100 80GB SXM (2021), H100 SXM (2023), H200 SXM (2024); rates that are stated with sparsity are halved.
    data_sheets = (_data_sheet(A100, 312, 2039), _data_sheet(H100, 989.5, 3352), _data_sheet(NVIDIA_H200, 989.5, 4800))
    brands = frozenset({"nvidia", "geforce", "tesla"})
    devices = DEVICES

    def find_architecture(self, name: str) -> Architecture | None:
        number = name.removeprefix("sm_")
        is_number = number.isascii() and number.isdecimal() and len(number) in (2, 3) and number[0] != "0"
        return architecture_of(int(number)) if is_number and name != number else None

    def target(self, architecture: Architecture) -> Target:
        return Target("cuda", architecture.generation, architecture.warp_size)

    def read_arch(self, properties: Any) -> str:
        return f"sm_{properties.major}{properties.minor}"

    def read_device(self, index: int) -> Device:
        return self._complete(super().read_device(index), _handle(index))

    def count_gpus(self) -> int | None:
        cuda, _ = torch_targets()
        installed = None if cuda is None else _ask("DeviceGetCount")
        return None if installed is None else count_visible(installed, os.environ.get("CUDA_VISIBLE_DEVICES"))

    def find_gpu(self, index: int) -> FoundGpu | None:
        try:
            gpu = DriverGpu(index)
        except (DriverError, OSError, AttributeError, ValueError):  # met again, and told, by torch
            return None
        handle = _nvml_handle(gpu.uuid)

        def open_context() -> int | None:
            before = self.processes()
            gpu.open()
            return own_pid(before, _pids(handle))

        device = Device(
            name=gpu.name,
            arch=self.read_arch(gpu),
            sm_count=gpu.multi_processor_count,
            memory_mib=gpu.memory_bytes // 2**20,
        )
        return FoundGpu(self._complete(device, handle), open_context)

    def _complete(self, device: Device, handle: Any) -> Device:
        """Return a device with what NVML says of its memory and power cap."""
        cap, memory = _ask("DeviceGetPowerManagementLimit", handle), _ask("DeviceGetMemoryInfo", handle)
        return replace(
            device,
            memory_mib=device.memory_mib if memory is None else memory.total // 2**20,
            power_cap_watts=None if cap is None else cap // 1000,
        )

    def read_conditions(self, index: int) -> Conditions:
        if (handle := _handle(index)) is None:
            return Conditions()
        reasons = _ask("DeviceGetCurrentClocksEventReasons", handle) or 0
        return Conditions(
            sm_clock_mhz=_ask("DeviceGetClockInfo", handle, SM_CLOCK),
            memory_clock_mhz=_ask("DeviceGetClockInfo", handle, MEMORY_CLOCK),
            temperature_c=_ask("DeviceGetTemperature", handle, GPU_TEMPERATURE),
            throttle_reasons=", ".join(sorted({name for bit, name in THROTTLE_REASONS.items() if reasons & bit})),
            contended=len(self.processes(index)) > 1,
        )

    def processes(self, index: int | None = None) -> set[int]:
        if index is not None:
            return _pids(_handle(index))
        numbers = range(_ask("DeviceGetCount") or 0)  # every GPU: torch may be shown but one of them
        return set().union(*(_pids(_ask("DeviceGetHandleByIndex", number)) for number in numbers))

    def others_computed(self, index: int, own_pid: int, since: float) -> bool | None:
        if (handle := _handle(index)) is None:
            return None
        import pynvml

        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, int(since * 1e6))
        except Exception as error:
            silent = (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND)  # supported, and no process computed
            return False if getattr(error, "value", None) in silent else None
        return any(sample.pid != own_pid and sample.smUtil > 0 for sample in samples)

    def driver_version(self) -> str:
        return str(_ask("SystemGetDriverVersion") or "")

    def read_resources(self, asm: Mapping[str, Any]) -> tuple[int | None, int | None]:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(asm["cubin"])
            file.flush()
            text = _run(_tool("cuobjdump"), "--dump-resource-usage", file.name)  # of annotations only: empty is fine
        registers, stack = re.search(r"REG:(\d+)", text), re.search(r"STACK:(\d+)", text)
        return int(registers[1]) if registers else None, int(stack[1]) if stack else None


def ptxas_version() -> str:
    """Return the release of the assembler that Triton calls: its own unless TRITON_PTXAS_PATH names another."""
    found = re.search(r"V([\d.]+)", _run(os.environ.get("TRITON_PTXAS_PATH") or _tool("ptxas"), "--version"))
    return found[1] if found else ""


def _tool(name: str) -> str:
    """Return the path of a program that Triton's wheel brings; empty without Triton, which is not imported for it."""
    try:
        triton = importlib.metadata.distribution("triton").locate_file("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return str(Path(str(triton)) / "backends" / "nvidia" / "bin" / name)


def _run(*command: str) -> str:
    """Return what a program prints; empty where it does not run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _handle(index: int) -> Any:
    """Return NVML's handle of a GPU as torch counts them, or None."""
    import torch

    return _nvml_handle(str(torch.cuda.get_device_properties(index).uuid))


def _pids(handle: Any) -> set[int]:
    """Return the pids that hold a context on a GPU, as the driver numbers them."""
    return {process.pid for process in _ask("DeviceGetComputeRunningProcesses", handle) or []}


@cache
def _nvml_handle(uuid: str) -> Any:
    return _ask("DeviceGetHandleByUUID", f"GPU-{uuid.removeprefix('GPU-')}")


def _ask(question: str, *arguments: Any) -> Any:
    """Return NVML's answer, or None without the package, a driver, a handle, or where a board refuses the question."""
    if None in arguments:
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        return getattr(pynvml, f"nvml{question}")(*arguments)
    except Exception:  # times are still right without it
        return None
