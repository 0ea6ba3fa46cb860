"""NVIDIA's GPUs by their driver, before torch is imported or while it is, which takes seconds.

Answers are those that torch would give; where that is not sure there is none, and torch is to be asked.
"""

import contextlib
import ctypes
import os
import re
import runpy
import uuid
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

LIBRARY: Final = "libcuda.so.1"
SM_COUNT, MAJOR, MINOR = 16, 75, 76  # CUdevice_attribute of cuda.h
NAME_BYTES: Final = 256


class DriverError(RuntimeError):
    """A call of the driver failed."""


@cache
def torch_targets() -> tuple[str | None, str | None]:
    """Return the versions of CUDA and of ROCm that the installed torch is built for; torch is not imported."""
    with contextlib.suppress(Exception):  # of a torch that is absent or broken: met again, and told, by its import
        spec = find_spec("torch")
        if spec is not None and spec.origin is not None:
            found = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
            return found.get("cuda"), found.get("hip")
    return None, None


def count_visible(installed: int, shown: str | None) -> int | None:
    """Return how many of the installed GPUs ``CUDA_VISIBLE_DEVICES`` shows, as torch counts; None where torch must say.

    Example:
        >>> count_visible(4, None), count_visible(4, "2,3"), count_visible(4, "0,9,1"), count_visible(4, "GPU-b1c2")
        (4, 2, 1, None)
    """
    if shown is None:
        return installed
    if not re.fullmatch(r"\d+(,\d+)*", shown):
        return None
    numbers = [int(each) for each in shown.split(",")]
    if len(set(numbers)) < len(numbers):
        return None
    return next((place for place, number in enumerate(numbers) if number >= installed), len(numbers))


class DriverGpu:
    """A GPU as CUDA's driver describes it, by its index among those that are visible; it has no context yet.

    Raises:
        DriverError: the driver refuses, is older than torch's CUDA, or shows a part of a GPU alone.
        OSError: there is no driver.
    """

    def __init__(self, index: int) -> None:
        cuda, _ = torch_targets()
        if cuda is None:
            raise DriverError("torch is not built for CUDA")
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does before it initialises the driver
        self._driver = ctypes.CDLL(LIBRARY)
        version, self._device = ctypes.c_int(), ctypes.c_int()
        name, size, number = ctypes.create_string_buffer(NAME_BYTES), ctypes.c_size_t(), (ctypes.c_ubyte * 16)()
        self._call("cuInit", 0)
        self._call("cuDriverGetVersion", ctypes.byref(version))
        if version.value // 1000 < int(cuda.partition(".")[0]):
            raise DriverError(f"the driver has CUDA {version.value // 1000}, torch {cuda}")
        self._call("cuDeviceGet", ctypes.byref(self._device), index)
        self._call("cuDeviceGetName", name, NAME_BYTES, self._device)
        self._call("cuDeviceTotalMem_v2", ctypes.byref(size), self._device)
        self._call("cuDeviceGetUuid", ctypes.byref(number), self._device)
        self.name = name.value.decode()
        if " MIG " in self.name:
            raise DriverError(f"{self.name} is a part of a GPU")
        self.memory_bytes = size.value
        self.uuid = str(uuid.UUID(bytes=bytes(number)))
        self.major, self.minor, self.multi_processor_count = map(self._attribute, (MAJOR, MINOR, SM_COUNT))

    def open(self) -> None:
        """Open this process's context on the GPU: the one that torch then uses."""
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), self._device)

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def _call(self, function: str, *arguments: object) -> None:
        error = getattr(self._driver, function)(*arguments)
        if error != 0:
            raise DriverError(f"{function} failed with error {error}")
