"""Triton's real launcher over a CUDA driver that logs launches, for tensors of the CPU: what would reach a GPU."""

import ctypes
import re
import struct
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import triton
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver

SOURCE: Final = Path(__file__).with_suffix(".c")
LIBRARY: Final = "libcuda.so.1"
INCLUDE: Final = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
STREAM: Final = 4242
HEAD: Final = struct.Struct("8Q")
LOG_BYTES: Final = 1 << 20
FUNCTION: Final = 6  # its place in the head
WIDTHS: Final = {"u64": 8, "s64": 8, "b64": 8, "u32": 4, "s32": 4, "b32": 4, "f32": 4}
POINTER: Final = 8
TENSOR_MAP: Final = 128


class Launched(NamedTuple):
    """A launch as the driver saw it: grid, threads, shared memory, stream, function, attributes; and parameters."""

    head: tuple[int, ...]
    parameters: tuple[bytes, ...]


def build(folder: Path) -> None:
    """Compile the stub into a folder, where ``LD_LIBRARY_PATH`` and ``TRITON_LIBCUDA_PATH`` may point a new process."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    command = [compiler, "-shared", "-fPIC", "-O1", f"-I{INCLUDE}", str(SOURCE), "-o", str(folder / LIBRARY)]
    subprocess.run([*command, f"-Wl,-soname,{LIBRARY}"], check=True)


class StubCuda:
    """The stub in this process, made Triton's driver, of an H200 that is the current device 0."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._library.stub_read.restype = ctypes.c_size_t
        self._layouts: dict[int, tuple[int, ...]] = {}
        self.stream = STREAM
        active = CudaDriver()
        active.get_device_capability = lambda device: (9, 0)
        active.get_current_device = lambda: 0
        active.get_current_stream = lambda device: self.stream
        driver.set_active(active)

    def learn(self, binary: Any) -> None:
        """Log a binary's launches from now on."""
        sizes = tuple(_parameter_sizes(binary.asm["ptx"]))
        self._layouts[binary.function] = sizes
        self._library.stub_layout(ctypes.c_ulonglong(binary.function), len(sizes), (ctypes.c_int * len(sizes))(*sizes))

    def read(self) -> list[Launched]:
        """Take the launches that were logged since."""
        buffer = ctypes.create_string_buffer(LOG_BYTES)
        size = self._library.stub_read(buffer)
        return list(self._parse(buffer.raw[:size]))

    def _parse(self, log: bytes) -> Iterator[Launched]:
        at = 0
        while at < len(log):
            head = HEAD.unpack_from(log, at)
            at += HEAD.size
            parameters = []
            for size in self._layouts[head[FUNCTION]]:
                parameters.append(log[at : at + size])
                at += size
            yield Launched(head, tuple(parameters))


def _parameter_sizes(ptx: str) -> Iterator[int]:
    entry = ptx[ptx.index(".entry") :]
    for declared in re.findall(r"\.param ([^\n]*?)_param_\d+(?:\[(\d+)\])?", entry[: entry.index(")")]):
        kind, count = declared
        yield int(count) if count else WIDTHS[kind.split()[0].removeprefix(".")]


def read_parameters(launches: list[Launched], names: dict[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    """Describe launches with addresses by the name of their tensor, or as the nth that is none of these.

    Two calls that allocate results and workspaces of their own are then described alike.
    """
    addresses = {tensor.data_ptr(): name for name, tensor in names.items()}
    lowest = min(addresses) >> 32  # of the heap or of mapped memory: constants are far below
    others: dict[int, str] = {}

    def describe(parameter: bytes) -> object:
        if len(parameter) == TENSOR_MAP:  # as the stub encodes it
            return describe(parameter[:POINTER]), parameter[POINTER:]
        if len(parameter) != POINTER:
            return parameter
        (value,) = struct.unpack("Q", parameter)
        if value in addresses:
            return addresses[value]
        if value >> 32 >= min(lowest, 1 << 12):
            return others.setdefault(value, f"other {len(others)}")
        return value

    return [(launched.head, *map(describe, launched.parameters)) for launched in launches]


def all_launches(stub: StubCuda, call: Callable[[], object]) -> list[Launched]:
    """Make a call and return its launches."""
    stub.read()
    call()
    return stub.read()
