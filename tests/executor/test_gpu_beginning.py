"""A worker finds and opens its GPU while it imports torch; what the driver cannot do is left to torch."""

import io
import json
import os
import subprocess
import sys

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.executor.gpu_beginning import Beginning
from autotune.executor.messages import Identified, Start, decode, encode
from autotune.platforms.interface import FoundGpu


def begin(line: bytes) -> tuple[Beginning, list[Device], bytes]:
    """Return the beginning after that input, the devices that were told, and what is left of the input."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as requests:
        os.write(writing, line)
        os.close(writing)
        answers = io.BytesIO()
        beginning = Beginning(reading, answers, 0)
        beginning.end()
        said = [decode(json.loads(each)) for each in answers.getvalue().splitlines()]
        assert all(isinstance(each, Identified) for each in said)
        return beginning, [each.device for each in said if isinstance(each, Identified)], requests.read()


START = json.dumps(encode(Start())).encode() + b"\n"


def test_the_gpu_is_told_and_then_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "find_gpu", lambda index: FoundGpu(NVIDIA_H200, lambda: 4711))
    beginning, told, rest = begin(START + b"next\n")
    assert told == [NVIDIA_H200]
    assert (beginning.is_wanted, beginning.device, beginning.is_open) == (True, NVIDIA_H200, True)
    assert beginning.own_pid == 4711
    assert rest == b"next\n"


def test_a_gpu_that_the_driver_does_not_find_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "find_gpu", lambda index: None)
    beginning, told, _ = begin(START)
    assert told == []
    assert (beginning.is_wanted, beginning.device, beginning.is_open) == (True, None, False)


def test_a_context_that_the_driver_does_not_open_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise RuntimeError("cuDevicePrimaryCtxRetain failed with error 2")

    monkeypatch.setattr(platforms, "find_gpu", lambda index: FoundGpu(NVIDIA_H200, fail))
    beginning, told, _ = begin(START)
    assert told == [NVIDIA_H200]
    assert (beginning.device, beginning.is_open) == (NVIDIA_H200, False)


def test_a_worker_that_was_never_needed_touches_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "find_gpu", lambda index: pytest.fail("the GPU was touched"))
    beginning, told, _ = begin(b"")
    assert (beginning.is_wanted, told) == (False, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("autotune.executor.worker", ("torch", "triton", "numpy", "optuna", "pyarrow", "autotune.dispatch")),
        ("autotune.executor.worker_answers", ("optuna", "pyarrow", "rich", "torch._dynamo", "autotune.dispatch")),
        ("autotune.executor.compile_server", ("optuna", "pyarrow", "rich", "torch._dynamo", "autotune.dispatch")),
        ("autotune.cli.studies", ("torch", "triton")),
    ],
)
def test_no_process_of_a_start_imports_what_it_does_not_need(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import {module}, sys; print(*{{*{heavy}}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
