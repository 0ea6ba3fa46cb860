"""Compiles one candidate for a target without a GPU, and reads what its binaries take."""

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Final, cast

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import FileCacheManager

from autotune.device import Architecture, Device
from autotune.errors import one_line
from autotune.implementation import Kernel
from autotune.kernels.compiles import settle_cache_keys
from autotune.platforms import platform_of
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Resources, Status

DIGEST_LENGTH: Final = 16
ASSEMBLER_KILLED: Final = "`ptxas` failed with error code -9"  # Triton 3.6, backends/nvidia/compiler.py
# Attributes of a compiled kernel's metadata that Triton 3.6's launchers read (backends/nvidia and amd, driver.py).
LAUNCH_METADATA: Final = (
    *("num_warps", "num_ctas", "cluster_dims", "shared", "tensordesc_meta", "global_scratch_size"),
    *("profile_scratch_size", "launch_cooperative_grid", "launch_pdl", "tmem_size", "warp_size"),
)


class MachineFaultError(RuntimeError):
    """This machine cannot compile; the candidate is not to blame."""


class DamagedCacheError(RuntimeError):
    """A compile that read the cache has failed; what it read is removed, so that another is a fair trial."""


class NotingCacheManager(FileCacheManager):  # type: ignore[misc] # Triton has no types
    """Triton's cache of files, which notes the entries that a compile has found something in."""

    found: ClassVar[set[Path]] = set()

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override=override, dump=dump)
        folder = Path(self.cache_dir)
        if not (override or dump) and any(folder.iterdir()):
            self.found.add(folder)


def use_target(architecture: Architecture) -> None:
    """Make Triton compile for that architecture in this process; nothing can be launched afterwards."""
    settle_cache_keys()
    if knobs.cache.manager_class is None:
        knobs.cache.manager_class = NotingCacheManager
    driver.set_active(target_driver(architecture))


def target_driver(architecture: Architecture) -> SimpleNamespace:
    """Return a driver for Triton that names a target and touches no device, so that ``warmup`` compiles for it.

    A binary compiled so is found in Triton's cache by the later launch on a real device of that target. It answers what
    a user's module asks as it is imported, such as ``DEVICE = triton.runtime.driver.active.get_active_torch_device()``.
    """
    target = GPUTarget(*platform_of(architecture).target(architecture))
    return SimpleNamespace(
        get_current_target=lambda: target,
        get_active_torch_device=lambda: torch.device("cuda", 0),  # ROCm's torch calls it so, too
        get_device_interface=lambda: torch.cuda,
        get_current_device=lambda: 0,
        get_current_stream=lambda device=None: 0,
        set_current_device=lambda device: None,
    )


def compile_candidate(
    kernel: Kernel,
    candidate: Candidate,
    shape: Shape,
    device: Device,
    *,
    also: Sequence[Shape] = (),
    every_output: bool = False,
    purge: bool = False,
) -> Outcome:
    """Compile a candidate under ``use_target``; one that the device cannot hold is refused here.

    Compilers accept any amount of shared and of tensor memory, so the device's limits are checked by us.

    Args:
        also: shapes that its numbers are checked on: their binaries are compiled, too, where they are others, so that
            nothing is left to the process that owns the GPU. They count for no resource.
        every_output: compile the binaries for all outputs instead of those for the first alone.
        purge: remove what a failed compile has read from Triton's cache, and raise.

    Raises:
        DamagedCacheError: with ``purge``; the next call is to be believed.
        MachineFaultError: an error of files or programs, such as a cache that cannot be written.
    """
    started = time.perf_counter()
    NotingCacheManager.found.clear()
    resources = Resources()
    try:
        binaries = kernel.warmup(candidate.config, shape, every_output=every_output)
        resources = read_resources(binaries, device.architecture)
        is_legible = resources.binary is None or resources.registers is not None
        for each in also:
            kernel.warmup(candidate.config, each, every_output=every_output)
    except Exception as error:  # whatever the compiler raises
        status, message = _judge_error(error, purge=purge)
    else:
        if purge and not is_legible:
            _purge("a binary that cannot be read")
        message = next(filter(None, (_why_too_large(binary, device) for binary in binaries)), "")
        status = Status.OUT_OF_RESOURCES if message else Status.OK
    return Outcome(
        candidate=candidate,
        status=status,
        message=message,
        resources=resources,
        compile_seconds=time.perf_counter() - started,
    )


def _judge_error(error: Exception, *, purge: bool) -> tuple[Status, str]:
    """Return a verdict on the candidate, unless memory, the cache or the machine is to blame."""
    if isinstance(error, MemoryError) or ASSEMBLER_KILLED in str(error):
        return Status.OUT_OF_MEMORY, one_line(error)
    if purge:
        _purge(one_line(error))
    if isinstance(error, OSError):
        raise MachineFaultError(one_line(error)) from error
    return Status.COMPILE_ERROR, one_line(error)


def _purge(reason: str) -> None:
    """Remove the entries of the cache that were read, if there are any, and say so by an exception."""
    found = set(NotingCacheManager.found)
    for folder in found:
        shutil.rmtree(folder, ignore_errors=True)
    if found:
        raise DamagedCacheError(reason)


def _why_too_large(binary: Any, device: Device) -> str:
    """Say what the device has too little of for a binary; empty where it can hold it."""
    shared, limit = int(binary.metadata.shared), device.shared_memory_bytes
    if shared > limit:
        return f"{shared} bytes of shared memory, {device.arch} has {limit}"
    columns, limit = getattr(binary.metadata, "tmem_size", None) or 0, device.architecture.tensor_memory_columns
    if columns > limit:
        return f"{columns} columns of tensor memory, {device.arch} has {limit}"
    return ""


def read_resources(binaries: Sequence[Any], architecture: Architecture) -> Resources:
    """Return the most that one of a launch's binaries takes of each resource, and a digest of all of them.

    Shared memory is of the metadata; registers and stack are of the machine code, where a tool can read it.
    """
    platform = platform_of(architecture)
    codes = [platform.machine_code(binary.asm) for binary in binaries]
    pairs = [platform.read_resources(binary.asm) for binary, code in zip(binaries, codes, strict=True) if code]
    registers = [count for count, _ in pairs if count is not None]
    stacks = [size for _, size in pairs if size is not None]
    return Resources(
        max((int(binary.metadata.shared) for binary in binaries), default=None),
        max(registers, default=None),
        max(stacks, default=None),
        binary=_digest(binaries, codes),
    )


def _digest(binaries: Sequence[Any], codes: Sequence[bytes | None]) -> str | None:
    """Name the machine code and the metadata that launches read beside it; None where there is no machine code."""
    digest = hashlib.sha256()
    for binary, code in zip(binaries, codes, strict=True):
        if code is None:
            return None
        launched = {name: str(getattr(binary.metadata, name, None)) for name in LAUNCH_METADATA}
        digest.update(json.dumps(launched).encode() + code)
    return digest.hexdigest()[:DIGEST_LENGTH]


@triton.jit  # type: ignore[untyped-decorator]
def _store(out_ptr, NUMBER: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(out_ptr, NUMBER)


class _Probe:
    """The least kernel there is: where it does not compile, the machine is to blame and not a candidate."""

    def warmup(self, config: Config, shape: Any, *, every_output: bool = False) -> Sequence[Any]:
        """Compile a number that no cache holds, so that every tool is used."""
        out = torch.empty(1, dtype=torch.int64, device="meta")
        return (_store.warmup(out, NUMBER=time.time_ns(), grid=(1,)),)


PROBE_KERNEL: Final = cast(Kernel, _Probe())
PROBE: Final = Candidate("probe", Config())
