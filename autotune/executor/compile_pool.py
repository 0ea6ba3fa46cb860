"""The parent's side of the compile server: configs go in, outcomes come out, the GPU is never touched."""

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from autotune.device import Device
from autotune.executor.child import Child
from autotune.executor.messages import outcome_from_json, problem_to_json
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome

COMPILE_SECONDS: Final = 60.0  # longer than any config of a bounded space has taken
COMPILER_MIB: Final = 500  # of memory that a compiler takes for itself, with what it starts
MEMORY_FILE: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")  # version 2, as a container sees its own


@dataclass(frozen=True, slots=True)
class Jobs:
    """How many compilers may run at once, and what limits them."""

    count: int
    reason: str


def limit_jobs(wanted: int | None) -> Jobs:
    """What was asked for (by default all cores but one), as far as the free memory goes; one always runs.

    Of the machine's limits and those of the cgroup the least counts.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = Jobs(max(1, cores - 1), f"{cores} cores") if wanted is None else Jobs(wanted, f"jobs={wanted}")
    quota = _cgroup_cores()
    if wanted is None and quota is not None and quota < cores:
        jobs = Jobs(max(1, quota - 1), f"{quota} cores of the cgroup")
    for free, where in ((_free_mib(), "free memory"), (_cgroup_free_mib(), "free memory of the cgroup")):
        if free is not None and free < jobs.count * COMPILER_MIB:
            jobs = Jobs(max(1, free // COMPILER_MIB), f"{free} MiB of {where} at {COMPILER_MIB} MiB a compiler")
    return jobs


def _free_mib() -> int | None:
    """Memory that can be had without swapping, where Linux tells."""
    free = _number(r"^MemAvailable:\s+(\d+) kB", MEMORY_FILE)
    return None if free is None else free // 1024


def _cgroup_cores() -> int | None:
    """Whole cores that the cgroup may use, if it is limited."""
    found = re.match(r"(\d+) (\d+)", _read(CGROUP / "cpu.max"))
    return max(1, int(found[1]) // int(found[2])) if found else None


def _cgroup_free_mib() -> int | None:
    """Memory that the cgroup may still take, if it is limited; cached files that nobody uses give way."""
    limit, used = (_number(r"^(\d+)", CGROUP / name) for name in ("memory.max", "memory.current"))
    if limit is None or used is None:
        return None
    cached = _number(r"^inactive_file (\d+)", CGROUP / "memory.stat") or 0
    return max(0, limit - used + cached) // 2**20


def _number(pattern: str, path: Path) -> int | None:
    """What the pattern finds in a file; None where there is no such file or number."""
    found = re.search(pattern, _read(path), re.MULTILINE)
    return int(found[1]) if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class CompilePool:
    """Compiles ahead in processes that never touch the GPU; finished outcomes come in any order."""

    def __init__(self, device: Device, *, jobs: int, timeout: float) -> None:
        settings = {"device": asdict(device), "jobs": jobs, "timeout": timeout}
        single_threaded = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._child = Child("autotune.executor.compile_server", json.dumps(settings), environment=single_threaded)
        self._problem: dict[str, Any] = {}
        self._number = 0

    def open(self, operation: Operation[Any], shape: Shape) -> None:
        """Turn to another problem; compiles of the last one are stopped."""
        self._number += 1
        self._problem = problem_to_json(operation, shape)
        self._child.send({"do": "open", **self._problem})

    def submit(self, config: Config) -> None:
        """Queue one config."""
        self._child.send({"do": "compile", "problem": self._number, "config": dict(config), **self._problem})

    def stop(self) -> None:
        """Drop what was submitted and not received; the problem stays open."""
        self._number += 1
        self._child.send({"do": "stop"})

    def receive(self, timeout: float) -> Outcome | None:
        """The next finished compile of the open problem, or None after that many seconds."""
        deadline = time.monotonic() + timeout
        while True:
            message = self._child.receive(max(0.0, deadline - time.monotonic()))
            if message is None:
                return None
            if message["problem"] == self._number:
                return outcome_from_json(message["outcome"])

    @property
    def has_message(self) -> bool:
        """Whether a message was read already and waits."""
        return self._child.has_message

    def fileno(self) -> int:
        return self._child.fileno()

    def close(self) -> None:
        self._child.close()
