"""The parent's side of the compile server: configs go in, outcomes come out, the GPU is never touched."""

import json
import time
from dataclasses import asdict
from typing import Any, Final

from autotune.device import Device
from autotune.executor.child import Child
from autotune.executor.messages import outcome_from_json, problem_to_json
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome

COMPILE_SECONDS: Final = 60.0  # longer than any config of a bounded space has taken


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
