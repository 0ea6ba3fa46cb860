"""The command line over an executor that answers slowly, to be stopped by a signal: ``python -m tests.cli.endless``.

Says ``closed`` on standard error when its executor is, where a real one ends its children.
"""

import signal
import sys
import time
from unittest.mock import patch

from autotune.cli import main
from autotune.device import NVIDIA_H200
from autotune.executor.replay import ReplayExecutor
from autotune.trial import Outcome
from autotune.tuning import tuner
from tests import sample


class SlowExecutor(ReplayExecutor):
    """Takes longer for all configs than any test would wait."""

    name = "gpu"

    def collect(self, timeout: float | None = None) -> Outcome:
        time.sleep(0.5)
        return super().collect(timeout)

    def close(self) -> None:
        print("closed", file=sys.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    executor = SlowExecutor(NVIDIA_H200, sample.sweep(sample.shape(64)))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with patch.object(tuner, "open_executor", lambda *_: executor):
        main()
