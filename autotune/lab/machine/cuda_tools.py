"""Find CUDA's command-line tools, and check that compute-sanitizer works here."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from autotune.errors import MissingDependencyError

# Where installers put them, beside the PATH; and the packages of the CUDA toolkit that have them.
PLACES: Final = {
    "ncu": ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu"),
    "compute-sanitizer": (
        "/usr/local/cuda/bin/compute-sanitizer",
        "/usr/local/cuda/compute-sanitizer/compute-sanitizer",
    ),
}
PACKAGES: Final = {"ncu": "nsight-compute", "compute-sanitizer": "cuda-sanitizer"}
PROBE_SECONDS: Final = 60.0
# The driver's own interface, which needs no torch: a context, some memory, and a write to it.
PROBE: Final = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
steps = (
    lambda: cuda.cuInit(0),
    lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    lambda: cuda.cuCtxSetCurrent(context),
    lambda: cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64)),
    lambda: cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(1), ctypes.c_size_t(64)),
    lambda: cuda.cuMemFree_v2(memory),
)
sys.exit(next((code for code in (step() for step in steps) if code), 0))
"""


def find_tool(name: str) -> str:
    """Return the path of ``ncu`` or ``compute-sanitizer``; MissingDependencyError where it is not installed."""
    found = shutil.which(name)
    if found is not None:
        return found
    for place in PLACES[name]:
        root, *parts = Path(place).parts
        for path in sorted(Path(root).glob("/".join(parts)), reverse=True):
            return str(path)
    raise MissingDependencyError(
        f"`{name}` is neither on the PATH nor at {' or '.join(PLACES[name])}: "
        f"install the CUDA toolkit's package {PACKAGES[name]}"
    )


def why_no_sanitizer() -> str | None:
    """Run a small program under compute-sanitizer and return why it cannot watch it; None where it can.

    It is installed where it cannot work, such as in a sandbox (gVisor), and then says that it does not know the device.
    """
    try:
        command = [find_tool("compute-sanitizer"), "--tool", "memcheck", sys.executable, "-P", "-c", PROBE]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (MissingDependencyError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    output = [line.strip("= ") for line in (ran.stdout + ran.stderr).splitlines() if line.strip("= ")]
    if ran.returncode == 0 and "ERROR SUMMARY: 0 errors" in output:
        return None
    return f"compute-sanitizer cannot watch a program here: {next(iter(output[1:]), f'it ended with {ran.returncode}')}"
