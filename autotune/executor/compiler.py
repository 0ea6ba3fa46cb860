"""Compiles one config for a target without a GPU, and reads what the binary takes."""

import hashlib
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import DependenciesFinder

from autotune.device import Architecture, Device
from autotune.errors import MESSAGE_LIMIT
from autotune.operation import Kernel
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome, Resources, Status

DIGEST_LENGTH: Final = 16
TENSOR_MEMORY_COLUMNS: Final = 512  # of an SM, compute capability 10 and 11 (PTX ISA 8.7, tensor memory)
ASSEMBLER_KILLED: Final = "`ptxas` failed with error code -9"  # Triton 3.6, backends/nvidia/compiler.py
# Attributes of a compiled kernel's metadata that Triton 3.6's launchers read (backends/nvidia and amd, driver.py).
LAUNCH_METADATA: Final = (
    *("num_warps", "num_ctas", "cluster_dims", "shared", "tensordesc_meta", "global_scratch_size"),
    *("profile_scratch_size", "launch_cooperative_grid", "launch_pdl", "tmem_size", "warp_size"),
)


class TargetDriver:
    """Stands in for Triton's GPU driver: names a target and touches no device, so that ``warmup`` compiles for it.

    A binary compiled so is found in Triton's cache by the later launch on a real device of that target.
    """

    def __init__(self, architecture: Architecture) -> None:
        self._target = GPUTarget(architecture.backend, architecture.capability, architecture.warp_size)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        return None


def settle_cache_keys() -> None:
    """Make the key of a binary in Triton's cache the same whatever this process compiled before it.

    Triton 3.6 takes the globals of a called function into the caller's key before it has collected them, so the key of
    a kernel depends on which others were compiled earlier: of a worker and its compilers each would miss what the other
    left in the cache. Here they are collected first.
    """
    update = getattr(DependenciesFinder, "_update_hash", None)
    if update is None or getattr(update, "is_settled", False):
        return

    def settled(finder: Any, function: Any) -> None:
        _ = function.cache_key  # fills its ``used_global_vals``
        update(finder, function)

    settled.is_settled = True  # type: ignore[attr-defined]
    DependenciesFinder._update_hash = settled


def use_target(architecture: Architecture) -> None:
    """Make Triton compile for that architecture in this process; nothing can be launched afterwards."""
    settle_cache_keys()
    driver.set_active(TargetDriver(architecture))


def compile_config(kernel: Kernel, config: Config, shape: Shape, device: Device) -> Outcome:
    """Compile a config under ``use_target``; a config that the device cannot hold is refused here.

    Compilers accept any amount of shared and of tensor memory, so the device's limits are checked by us.
    """
    started = time.perf_counter()
    try:
        compiled = kernel.warmup(config, shape)
    except Exception as error:  # whatever the compiler raises is a verdict on the config, unless memory ran out
        message = f"{type(error).__name__}: {error}".strip().splitlines()
        starved = isinstance(error, MemoryError) or ASSEMBLER_KILLED in str(error)
        return Outcome(
            config=config,
            status=Status.OUT_OF_MEMORY if starved else Status.COMPILE_ERROR,
            message=" ".join(message)[:MESSAGE_LIMIT],
            compile_seconds=time.perf_counter() - started,
        )
    seconds = time.perf_counter() - started
    resources = read_resources(compiled)
    refusal = _why_too_large(compiled, resources, device)
    return Outcome(
        config=config,
        status=Status.OUT_OF_RESOURCES if refusal else Status.OK,
        message=refusal,
        resources=resources,
        compile_seconds=seconds,
    )


def _why_too_large(compiled: Any, resources: Resources, device: Device) -> str:
    """What the device has too little of; empty where it can hold the binary."""
    limit = device.shared_memory_bytes
    if resources.shared_bytes is not None and resources.shared_bytes > limit:
        return f"{resources.shared_bytes} bytes of shared memory, {device.arch} has {limit}"
    columns = getattr(compiled.metadata, "tmem_size", None) or 0
    if columns > TENSOR_MEMORY_COLUMNS:
        return f"{columns} columns of tensor memory, {device.arch} has {TENSOR_MEMORY_COLUMNS}"
    return ""


def read_resources(compiled: Any) -> Resources:
    """Shared memory from the metadata; registers and stack from the binary, where a tool can read it."""
    shared = int(compiled.metadata.shared)
    if "cubin" in compiled.asm:
        text = _dump_resource_usage(compiled.asm["cubin"])
        registers, stack = re.search(r"REG:(\d+)", text), re.search(r"STACK:(\d+)", text)
    else:
        text = compiled.asm.get("amdgcn", "")
        registers = re.search(r"\.vgpr_count:\s*(\d+)", text)
        stack = re.search(r"\.private_segment_fixed_size:\s*(\d+)", text)
    return Resources(
        shared, int(registers[1]) if registers else None, int(stack[1]) if stack else None, binary=_digest(compiled)
    )


def _digest(compiled: Any) -> str | None:
    """Names the machine code and the metadata that a launch reads beside it; None where there is no binary."""
    code = compiled.asm.get("cubin") or compiled.asm.get("hsaco")
    if not isinstance(code, bytes):
        return None
    launched = {name: str(getattr(compiled.metadata, name, None)) for name in LAUNCH_METADATA}
    return hashlib.sha256(json.dumps(launched).encode() + code).hexdigest()[:DIGEST_LENGTH]


def _dump_resource_usage(cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            command = [str(tool), "--dump-resource-usage", file.name]
            return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
        except (OSError, subprocess.SubprocessError):
            return ""  # annotations only: the launch will tell
