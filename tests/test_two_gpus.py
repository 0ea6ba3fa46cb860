"""Two GPUs in one process: eight threads, forks meanwhile, spawned children; no compile after ``warm`` and ``seal``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
TOLERANCE = 0.03  # of bfloat16 outputs of standard normal inputs, as in tests/test_tuning_gpu.py


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it needs two GPUs")
def test_threads_forks_and_spawned_processes_share_two_gpus() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.on_two_gpus"], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["error"] < TOLERANCE
    assert set(found["forks"]) == {0}, done.stderr[-4000:]
    assert max(found["spawned"]) < TOLERANCE
    assert found["before"]["compiles"] == found["after"]["compiles"]
    assert found["before"]["misses"] == found["after"]["misses"]
