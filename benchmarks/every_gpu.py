"""Run a benchmark on every GPU of the host at once, a part of its problems on each: ``python -m benchmarks.every_gpu``.

The benchmark is one that takes ``--part I/N``; of N visible GPUs the I-th gets the I-th part, and ``{gpu}`` in an
argument stands for I. Each process sees its GPU alone and has its share of the cores to compile on::

    python -m benchmarks.every_gpu record grid --missing --minutes 9 --store $OUT/store --results $OUT/{gpu}
    python -m benchmarks.every_gpu served_regret --drawn 60 --minutes 9 --store $OUT/store

A search needs none of this: ``autotune search --gpus all`` hands out shapes as GPUs become free, and all cores compile
for whichever waits (``benchmarks.many_gpus`` compares that with one GPU). Here each process is a whole benchmark.

Lines are printed as they come, behind the number of their GPU. Exits with the greatest code of all.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.console import require_gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """List the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    if VISIBLE in environment:
        return [name for name in environment[VISIBLE].split(",") if name]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def run_all(command: Sequence[str], gpus: Sequence[str]) -> int:
    """Run a command for each GPU, all at once, and return the greatest exit code."""
    cores = sorted(os.sched_getaffinity(0))
    count = len(gpus)
    with ThreadPoolExecutor(count) as threads:
        running = [
            threads.submit(_run, command, gpu, number, count, cores[number - 1 :: count] or cores)
            for number, gpu in enumerate(gpus, start=1)
        ]
        return max(each.result() for each in running)


def _run(command: Sequence[str], gpu: str, number: int, count: int, cores: Sequence[int]) -> int:
    os.sched_setaffinity(0, cores)  # of this thread, which the process inherits
    filled = [part.replace("{gpu}", str(number)) for part in command]
    process = subprocess.Popen(
        [*filled, "--part", f"{number}/{count}"],
        env={**os.environ, VISIBLE: gpu},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"[{number}] {line}", end="", flush=True)
    return abs(int(process.returncode))


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    require_gpu("every_gpu")
    module, *arguments = sys.argv[1:]
    sys.exit(run_all([sys.executable, "-m", f"benchmarks.{module}", *arguments], visible_gpus(os.environ)))


if __name__ == "__main__":
    main()
