"""A fleet of 10,000 GPUs and 1,000,000 trials: seconds and memory to merge, look at and plan it, without a GPU.

``python -m benchmarks.fleet_simulation`` writes a place as a fleet would leave it, one part and two records for each
task: rows of a shipped sweep at invented times, on two kinds of device, one of them at two power caps and with two
toolchains. Then ``autotune tables merge``, ``autotune grid status`` and ``autotune grid plan`` run over it as they are,
each in a process of its own. At most 60 s and 2 GB are wanted of each; exits with 1 above.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from autotune.device import Device
from autotune.grid import Attempt, AttemptEnd, GridTask
from autotune.grid.attempt import encode
from autotune.grid.grid_file import read_grid
from autotune.grid.place import TABLES, TASKS
from autotune.models import MODELS
from autotune.registry import get_implementation
from autotune.table import shipped_sweeps, table_schema
from autotune.table.files import sha256
from autotune.table.parquet import encode_columns
from autotune.table.rows import to_columns
from autotune.table.schema import TableSchema
from autotune.trial import Stage, Status

GPUS, TRIALS = 10_000, 100  # trials of each task, one task on each GPU
WANTED_SECONDS, WANTED_MB = 60.0, 2000.0
OPERATION, IMPLEMENTATION = "flash_attention", "triton"
BEGUN: Final = datetime(2026, 11, 25, 12, tzinfo=UTC)
RUNNERS: Final = (
    ("NVIDIA H200", 700, "3.6.0"),
    ("NVIDIA H200", 500, "3.6.0"),
    ("NVIDIA H100 80GB HBM3", 700, "3.6.0"),
    ("NVIDIA H100 80GB HBM3", 700, "3.9.0"),
)
GRID: Final = """
devices = ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]
[[grid]]
models = {models}
operations = ["flash_attention", "paged_decode"]
lengths = {lengths}
batches = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_simulation", description=__doc__)
    parser.add_argument("--gpus", type=int, default=GPUS, help=f"GPUs, with a task each [default: {GPUS}]")
    count: int = parser.parse_args(arguments).gpus
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        started = time.perf_counter()
        grid = write_grid(root / "grid.toml")
        tasks = read_grid(grid)[:count]
        write_place(root / "place", tasks)
        print(f"{len(tasks):,} GPUs, {len(tasks) * TRIALS:,} trials; written in {time.perf_counter() - started:.0f} s")
        print(f"{'step':8}{'seconds':>9}{'of the processor':>18}{'MB at most':>12}")
        steps: dict[str, tuple[list[object], int]] = {
            "merge": (["tables", "merge", root / "place" / TABLES, "--into", root / "merged"], os.cpu_count() or 1),
            "status": (["grid", "status", root / "place", grid], 0),
            "plan": (["grid", "plan", grid], 0),
        }
        above = []
        for name, (command, workers) in steps.items():
            seconds, own, megabytes = _measure(command, workers)
            print(f"{name:8}{seconds:9.1f}{own:18.1f}{megabytes:12,.0f}", flush=True)
            if seconds > WANTED_SECONDS or megabytes > WANTED_MB:
                above.append(name)
    if above:
        sys.exit(f"benchmarks.fleet_simulation: above {WANTED_SECONDS:.0f} s or {WANTED_MB:.0f} MB: {', '.join(above)}")


def write_grid(path: Path) -> Path:
    """Write a grid of more tasks than there are GPUs."""
    models = [name for name, model in MODELS.items() if model.has_cache][:20]
    lengths = [size for power in range(8, 16) for size in (2**power, 3 * 2 ** (power - 1))]
    path.write_text(GRID.format(models=models, lengths=lengths), encoding="utf-8")
    return path


def write_place(place: Path, tasks: Sequence[GridTask]) -> None:
    """Write the parts and the records of an attempt at each task; a few are running, failed or lost."""
    schema, rows = table_schema(get_implementation(OPERATION, IMPLEMENTATION)), _rows()
    for number, task in enumerate(tasks):
        device, cap, triton = RUNNERS[number % len(RUNNERS)]
        token, started = f"{number:08x}", BEGUN + timedelta(seconds=number % 3600)
        attempt = Attempt(
            task=task.key,
            number=1,
            token=token,
            host=f"node-{number // 8:04}",
            device=device,
            power_cap_watts=float(cap),
            toolchain=f"triton {triton}",
            started=started,
        )
        _write(place / TASKS / task.key / f"1-{token}.begun.json", encode(attempt))
        if number % 50 == 0:  # lost by now
            continue
        ending = AttemptEnd(task=task.key, token=token, state="done", seconds=45.0, trials={"ok": 90, "slow": 10})
        _write(place / TASKS / task.key / f"{token}.ended.json", encode(ending))
        data = _part(schema, rows, number, device, cap, triton, started)
        slug = Device(name=device, arch="sm_90", sm_count=132, memory_mib=1).slug
        _write(place / TABLES / slug / OPERATION / IMPLEMENTATION / f"{sha256(data)}.parquet", data)


def _rows() -> dict[str, list[Any]]:
    recorded = next(sweep for sweep in shipped_sweeps(OPERATION, implementation=IMPLEMENTATION)).trials()
    screened = [row for row in recorded if row.stage is Stage.SCREEN and row.status is Status.OK][: TRIALS - 5]
    raced = [row for row in recorded if row.stage is Stage.RACE and row.status is Status.OK][:5]
    more = [replace(row, number=row.number + 1000) for row in screened]
    trials = [*screened, *raced, *more][:TRIALS]
    columns, _ = to_columns(table_schema(get_implementation(OPERATION, IMPLEMENTATION)), trials, "rows")
    return columns


def _part(
    schema: TableSchema, rows: dict[str, list[Any]], number: int, device: str, cap: int, triton: str, started: datetime
) -> bytes:
    first = int(started.timestamp() * 1e6)
    jitter = 1.0 + number * 1e-6
    same = {
        "batch": number + 1,
        "device_name": device,
        "power_cap_watts": cap,
        "triton_version": triton,
        "study": f"study {number}",
        "worker": f"node-{number // 8:04}:1",
        "seed": number % 8,
    }
    columns = {name: [same.get(name, value) for value in values] for name, values in rows.items()}
    columns["race_id"] = [race and f"race {number}" for race in rows["race_id"]]
    columns["started_at"] = [first + 250_000 * row for row in range(TRIALS)]
    for name in ("median_us", "low_us", "high_us"):
        columns[name] = [None if value is None else value * jitter for value in rows[name]]
    return encode_columns(columns, schema.arrow, schema.metadata, f"study {number}")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _measure(command: Sequence[object], workers: int) -> tuple[float, float, float]:
    """Run a command; return its seconds, those of the processor, and the most memory that it and its workers take."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "autotune", *map(str, command)], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"benchmarks.fleet_simulation: autotune {' '.join(map(str, command))} failed")
    # The largest process counts for each, as if all were as large at once.
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3 * (1 + workers)


if __name__ == "__main__":
    main()
