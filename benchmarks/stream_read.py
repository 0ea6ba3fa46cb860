"""Bandwidth at which this GPU reads memory once, by a tuned Triton kernel: ``python -m benchmarks.stream_read``.

It bounds decode attention. Sizes in MB may be given; each is read from buffers that rotate past the L2, under a CUDA
graph, with every config of a small list, and the fastest counts.
"""

import argparse
import itertools
import math
import statistics
from functools import partial
from typing import Any, Final

import torch
import triton
import triton.language as tl

from autotune.timing import Launch, Stopwatch
from autotune.trial import Policy
from benchmarks.console import require_gpu

BLOCKS: Final = (4096, 8192, 16384)  # int32 that a program reads at once
WARPS: Final = (4, 8)
PROGRAMS_PER_SM: Final = (2, 4, 8, 16)
UNROLLED: Final = (1, 2, 4)  # blocks whose loads wait together
SAMPLES: Final = 7
ROTATION: Final = 2.2  # times the L2 that the buffers take together


@triton.jit  # type: ignore[untyped-decorator]
def _read(source, sink, count, BLOCK: tl.constexpr, UNROLLED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute the exclusive or of ``source``: ``count`` is a multiple of the block, which programs take in turns."""
    found = tl.zeros([BLOCK], tl.int32)
    step = tl.num_programs(0) * BLOCK
    for start in range(tl.program_id(0) * BLOCK, count, step * UNROLLED):
        for part in tl.static_range(UNROLLED):
            first = start + part * step
            found ^= tl.load(source + first + tl.arange(0, BLOCK), mask=first < count, other=0)
    tl.store(sink + tl.program_id(0), tl.xor_sum(found))


def fastest_read(megabytes: float) -> tuple[float, str]:
    """Return the microseconds of reading so many MB (10^6 bytes) once, and the fastest config."""
    device: Any = torch.cuda.get_device_properties(0)
    count = math.ceil(megabytes * 1e6 / 4 / max(BLOCKS)) * max(BLOCKS)
    copies = max(1, math.ceil(ROTATION * device.L2_cache_size / (4 * count)))
    buffers = [torch.randint(-(2**31), 2**31, (count,), dtype=torch.int32, device="cuda") for _ in range(copies)]
    sink = torch.empty(max(PROGRAMS_PER_SM) * device.multi_processor_count, dtype=torch.int32, device="cuda")
    times: list[tuple[float, str]] = []
    for block, warps, programs, unrolled in itertools.product(BLOCKS, WARPS, PROGRAMS_PER_SM, UNROLLED):
        grid = (min(count // block, programs * device.multi_processor_count),)
        options = (sink, count, block, unrolled)
        launches: list[Launch] = [partial(_read[grid], buffer, *options, num_warps=warps) for buffer in buffers]
        with Stopwatch(launches, Policy()) as stopwatch:
            stopwatch.warm_up()
            microseconds = statistics.median(stopwatch.sample() for _ in range(SAMPLES))
        name = f"BLOCK={block} num_warps={warps} programs_per_sm={programs} unrolled={unrolled}"
        times.append((microseconds, name))
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream_read", description=__doc__)
    parser.add_argument("megabytes", type=float, nargs="*", default=[34.0, 268.0, 1074.0, 4295.0])
    sizes = parser.parse_args().megabytes
    require_gpu("stream_read")
    for size in sizes:
        microseconds, config = fastest_read(size)
        print(f"{size:8.0f} MB  {microseconds:8.1f} us  {size / microseconds:5.2f} TB/s  {config}", flush=True)


if __name__ == "__main__":
    main()
