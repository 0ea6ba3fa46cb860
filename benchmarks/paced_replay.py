"""Imported by the driver and the workers of ``benchmarks.grid_workers``: replays that take as long as a GPU's trials.

What a host without a GPU does beside, compiling the finalists and interpreting the winner, would be all that is
measured: the implementation is said to have neither, in these processes.
"""

import os
import time
from typing import Final

from autotune.executor.replay import ReplayExecutor
from autotune.registry import get_implementation
from autotune.trial import Outcome

OPERATION, NAME = "flash_attention", "triton"
SECONDS: Final = "AUTOTUNE_BENCHMARK_TRIAL_SECONDS"

_collect: Final = ReplayExecutor.collect


def _paced(self: ReplayExecutor, timeout: float | None = None) -> Outcome:
    time.sleep(float(os.environ[SECONDS]))
    return _collect(self, timeout)


for _field in ("compiles_ahead", "can_interpret"):
    object.__setattr__(get_implementation(OPERATION, NAME), _field, False)  # a frozen dataclass
ReplayExecutor.collect = _paced  # type: ignore[method-assign]
