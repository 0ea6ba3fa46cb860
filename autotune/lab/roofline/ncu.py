"""Nsight Compute's counts of each kernel's memory traffic and throughput, and the model's predictions beside them."""

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Final

from autotune.errors import AutotuneError, MissingDependencyError
from autotune.lab.machine.cuda_tools import find_tool
from autotune.lab.machine.processor import Processor
from autotune.lab.roofline.dram import Dram, batch_past_l2, fused_dram, naive_dram, sum_dram
from autotune.lab.roofline.launch_once import KERNELS
from autotune.shape import AttentionShape

READ: Final = "dram__bytes_read.sum"
WRITE: Final = "dram__bytes_write.sum"
MEMORY: Final = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
COMPUTE: Final = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
METRICS: Final = (READ, WRITE, MEMORY, COMPUTE)

SECONDS: Final = 540.0
UNITS: Final = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12, "%": 1.0, "": 1.0}
# What ncu prints, and what is wrong then.
REFUSALS: Final = {
    "ERR_NVGPUCTRPERM": "the driver lets only administrators read the counters: run it as root, or load the driver "
    "with NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)",
    "LibraryNotLoaded": "the profiler's library cannot be loaded: in a sandbox (gVisor) it never can",
    "No kernels were profiled": "no kernel of the program was seen",
    "Profiling is not supported on this device": "it does not know this GPU",
}


@dataclass(frozen=True, slots=True)
class Counted:
    """The counters of one launch: bytes read and written, and percents of the peak throughput of memory and SMs."""

    kernel: str
    read: int
    write: int
    memory_percent: float
    compute_percent: float

    @property
    def total(self) -> int:
        return self.read + self.write


PROGRAM: Final = "autotune.lab.roofline.launch_once"


def count_kernels(shape: AttentionShape, *, ncu: str | None = None, device: str = "cuda") -> list[Counted]:
    """Launch naive attention's kernels and the served one under Nsight Compute, each once, from an empty L2.

    MissingDependencyError where it is not installed or may not read the counters; AutotuneError where the child failed.
    """
    command = [ncu or find_tool("ncu"), *_options(), sys.executable, "-P", "-m", PROGRAM]
    command += [json.dumps(shape.as_dict()), device]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AutotuneError(f"Nsight Compute did not end: {error}") from error
    output = ran.stdout + ran.stderr
    for sign, reason in REFUSALS.items():
        if sign in output:
            raise MissingDependencyError(f"Nsight Compute counts nothing here ({sign}): {reason}")
    if ran.returncode:
        raise AutotuneError(f"Nsight Compute ended with {ran.returncode}: {_last_line(output)}")
    return parse_raw_page(ran.stdout)


def parse_raw_page(text: str) -> list[Counted]:
    """Read the output of ``ncu --csv --page raw``: a header, a row of units, and a row for each launch.

    Lines before the header are the program's own and ncu's ``==PROF==``. Numbers may have separators of thousands.
    Without a header, or with a metric missing in it, AutotuneError is raised.
    """
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise AutotuneError(f"Nsight Compute printed no table: {_last_line(text)}")
    table = list(csv.reader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"')))))
    header, units, rows = table[0], table[1], table[2:]
    missing = [name for name in (*METRICS, "Kernel Name") if name not in header]
    if missing:
        raise AutotuneError(f"Nsight Compute's table has no column {missing[0]}; it has {', '.join(header)}")
    unit_of = dict(zip(header, units, strict=True))
    found = []
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        read, write, memory, compute = (_number(name, cells[name], unit_of[name]) for name in METRICS)
        kernel = cells["Kernel Name"]  # older Tritons and C++ append something to the name
        kernel = next((name for name in KERNELS if kernel.startswith(name)), kernel)
        found.append(Counted(kernel, round(read), round(write), memory, compute))
    return found


def _number(metric: str, cell: str, unit: str) -> float:
    try:
        return float(cell.replace(",", "")) * UNITS[unit]
    except (ValueError, KeyError):
        raise AutotuneError(
            f"Nsight Compute's {metric} is {cell!r} {unit!r}; expected a number of bytes or %"
        ) from None


def _options() -> list[str]:
    names = "|".join(KERNELS)
    return [
        *("--csv", "--page", "raw", "--print-units", "base"),
        *("--metrics", ",".join(METRICS)),
        *("--kernel-name", f"regex:^({names})"),
        *("--cache-control", "all"),  # each kernel begins with an empty L2, as the model does
        *("--clock-control", "none"),  # throughput is a part of what the device does as it runs
        *("--target-processes", "application-only"),  # not the assembler that Triton calls
    ]


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"


FUSED: Final = "flash_attention_forward"
TOLERANCE: Final = 0.15  # of the count, within which the model is said to hold


@dataclass(frozen=True, slots=True)
class CountedBeside:
    """Memory traffic by the model and by the counters, of one kernel or of all three ``naive`` ones together."""

    kernel: str
    shape: AttentionShape
    predicted: Dram
    counted: Counted

    @property
    def deviation(self) -> float:
        """The prediction's excess over the count, as a part of the count; negative where it is lower."""
        return self.predicted.total / self.counted.total - 1.0

    @property
    def agrees(self) -> bool:
        return abs(self.deviation) <= TOLERANCE


def compare_with_ncu(
    shape: AttentionShape, processor: Processor, *, keeps_batch: bool = False, ncu: str | None = None
) -> list[CountedBeside]:
    """Count the naive kernels and the served one as ``count_kernels`` does, beside the model.

    Unless ``keeps_batch``, the batch is raised until what is moved is eight times the L2.
    """
    from autotune.dispatch import get_kernel

    path = ncu or find_tool("ncu")
    if not keeps_batch:
        shape = replace(shape, batch=max(shape.batch, batch_past_l2(shape, processor.cache_bytes)))
    if (torch := sys.modules.get("torch")) is not None:
        torch.cuda.empty_cache()  # the child process needs what torch's allocator keeps
    config = get_kernel(shape, device=processor.name).config
    tile = config.integer("BLOCK_Q"), config.integer("BLOCK_K")
    predicted = (*naive_dram(shape, processor.cache_bytes), fused_dram(shape, *tile, processor.cache_bytes))
    return compare(shape, predicted, count_kernels(shape, ncu=path))


def compare(shape: AttentionShape, predicted: tuple[Dram, ...], counted: list[Counted]) -> list[CountedBeside]:
    """Pair them by kernel, the last launch of each; the naive kernels' sum stands before the fused one."""
    last = {found.kernel: found for found in counted}
    missing = [dram.kernel for dram in predicted if dram.kernel not in last]
    if missing:
        raise AutotuneError(f"Nsight Compute did not count {missing[0]}; it saw {', '.join(last) or 'no kernel'}")
    pairs = [CountedBeside(dram.kernel, shape, dram, last[dram.kernel]) for dram in predicted]
    naive, fused = [p for p in pairs if p.kernel != FUSED], [p for p in pairs if p.kernel == FUSED]
    return [*naive, _together(shape, naive), *fused]


def _together(shape: AttentionShape, pairs: list[CountedBeside]) -> CountedBeside:
    """Add up the bytes; weight the percents with them, since times are not counted."""
    counts = [pair.counted for pair in pairs]
    moved = sum(count.total for count in counts) or 1

    def mean(name: str) -> float:
        return float(sum(getattr(count, name) * count.total for count in counts) / moved)

    read, written = sum(count.read for count in counts), sum(count.write for count in counts)
    counted = Counted("naive", read, written, mean("memory_percent"), mean("compute_percent"))
    return CountedBeside("naive", shape, sum_dram("naive", (pair.predicted for pair in pairs)), counted)
