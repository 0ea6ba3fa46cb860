"""Fixtures of the executor tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest

from autotune import hardware
from autotune.device import NVIDIA_H200
from autotune.executor.child import Child
from tests.executor.fake_cuda import replace_cuda
from tests.executor.processes import Processes, watch
from tests.executor.slow_kernel import CONDITIONS, SlowKernel

StartChild = Callable[[str], Child]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """What the test starts; it fails if something is left at its end."""
    with watch(monkeypatch) as processes:
        yield processes


@pytest.fixture
def start(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartChild]:
    """Starts a child that runs the given code, which finds ``json``, ``os``, ``sys``, ``time`` and ``messages``."""
    monkeypatch.syspath_prepend(tmp_path)
    prologue = "import json, os, subprocess, sys, time\nfrom autotune.executor import messages\n"
    with ExitStack() as ended:

        def start_child(code: str) -> Child:
            (tmp_path / "child_of_a_test.py").write_text(prologue + dedent(code))
            child = Child("child_of_a_test")
            ended.callback(child.kill)
            return child

        yield start_child


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> SlowKernel:
    """The slow kernel on a fake GPU, whose context its illegal launches break."""
    cuda = replace_cuda(monkeypatch)
    monkeypatch.setattr(hardware, "current_device", lambda: NVIDIA_H200)
    monkeypatch.setattr(hardware.Watch, "__init__", lambda self, own_pid: None)
    monkeypatch.setattr(hardware.Watch, "end", lambda self: CONDITIONS)
    slow = SlowKernel(cuda)
    monkeypatch.setattr(hardware, "is_context_alive", lambda: slow.is_context_alive)
    return slow
