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


@dataclass(frozen=True, slots=True)
class Jobs:
    """How many compilers may run at once, and what limits them."""

    count: int
    reason: str


def limit_jobs(wanted: int | None) -> Jobs:
    """What was asked for (by default all cores but one), as far as the free memory goes; one always runs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = Jobs(max(1, cores - 1), f"{cores} cores") if wanted is None else Jobs(wanted, f"jobs={wanted}")
    free = _free_mib()
    if free is None or free >= jobs.count * COMPILER_MIB:
        return jobs
    return Jobs(max(1, free // COMPILER_MIB), f"{free} MiB of free memory at {COMPILER_MIB} MiB a compiler")


def _free_mib() -> int | None:
    """Memory that can be had without swapping, where Linux tells."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", MEMORY_FILE.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) // 1024 if found else None


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
