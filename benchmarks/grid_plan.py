"""Time ``autotune grid plan`` of 20 models, 8 lengths and 6 batches: ``python -m benchmarks.grid_plan``; no GPU.

Each number is the least of several fresh processes, imports included, since a machine that others use only adds; the
processor's seconds stand beside the wall's. Modules are read from bytecode, as after an installation by pip, whatever
``PYTHONDONTWRITEBYTECODE`` says here: a first process of each case writes it to a folder of its own. At most 2 s are
wanted for one operation on one kind of device; exits with 1 above.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from autotune.models import MODELS

WANTED_SECONDS: Final = 2.0
PROCESSES: Final = 3
MODEL_COUNT: Final = 20
GRID: Final = """
devices = {devices}
[[grid]]
models = {models}
operations = {operations}
lengths = "256,...,32768"
batches = [1, 4, 16, 32, 64, 128]
"""
H200: Final = "NVIDIA H200"
CASES: Final = {
    "dense on an H200": (["flash_attention"], [H200]),
    "dense and decode on an H200": (["flash_attention", "paged_decode"], [H200]),
    "the same, on an H100 too": (["flash_attention", "paged_decode"], [H200, "NVIDIA H100 80GB HBM3"]),
}


def main() -> None:
    models = [name for name, model in MODELS.items() if model.has_cache][:MODEL_COUNT]
    print(f"{MODEL_COUNT} models, 8 lengths, 6 batches; the least of {PROCESSES} processes")
    least = {}
    with tempfile.TemporaryDirectory() as folder:
        grid = Path(folder, "grid.toml")
        for name, (operations, devices) in CASES.items():
            grid.write_text(GRID.format(devices=devices, models=models, operations=operations), encoding="utf-8")
            _, *runs = [_plan(grid, Path(folder, "bytecode")) for _ in range(1 + PROCESSES)]
            wall, own = (min(times) for times in zip(*runs, strict=True))
            least[name] = wall
            print(f"{name:28} {wall:6.2f} s ({own:.2f} s of the processor)")
    first = next(iter(least.values()))
    if first > WANTED_SECONDS:
        sys.exit(f"benchmarks.grid_plan: wanted {WANTED_SECONDS:.0f} s, took {first:.2f} s")


def _plan(grid: Path, bytecode: Path) -> tuple[float, float]:
    """Plan a grid in a new process; return the seconds of the wall and of the processor."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(bytecode)}
    command = [sys.executable, "-m", "autotune", "grid", "plan", str(grid)]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return ended - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
