"""Fixtures of the executor tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest

from autotune import platforms, registry
from autotune.device import NVIDIA_H200
from autotune.executor.child import Child
from tests.executor.fake_cuda import replace_cuda
from tests.executor.processes import Processes, watch
from tests.executor.slow_kernel import CONDITIONS, SlowKernel

StartChild = Callable[[str], Child]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """The processes that the test starts; it fails if one is left at its end."""
    with watch(monkeypatch) as processes:
        yield processes


@pytest.fixture
def start(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartChild]:
    """Starts a child that runs the given code, which finds ``json``, ``os``, ``sys``, ``time`` and ``child``."""
    monkeypatch.syspath_prepend(tmp_path)
    prologue = "import json, os, subprocess, sys, time\nfrom autotune.executor import child\n"
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
    monkeypatch.setattr(platforms, "current_device", lambda index: NVIDIA_H200)
    monkeypatch.setattr(platforms.Watch, "__init__", lambda self, own_pid, index: None)
    monkeypatch.setattr(platforms.Watch, "end", lambda self: CONDITIONS)
    slow = SlowKernel(cuda)
    monkeypatch.setattr(platforms, "is_context_alive", lambda index: slow.is_context_alive)
    monkeypatch.setattr(registry, "load_definition", lambda operation: slow)
    monkeypatch.setattr(registry, "load_kernel", lambda operation, implementation: slow)
    monkeypatch.setattr(registry, "load_baselines", lambda operation: slow.baselines())
    return slow
