"""Fixtures of the executor tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest

from autotune import hardware
from autotune.executor import worker_keeper
from autotune.executor.child import Child
from tests.executor.processes import Processes, watch

StartChild = Callable[[str], Child]


def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on there is a GPU, whose worker is the fake one."""

    def start_fake(module: str, *arguments: str) -> Child:
        return Child({"autotune.executor.worker": "tests.executor.fake_worker"}[module], *arguments)

    monkeypatch.setattr(hardware, "has_gpu", lambda: True)
    monkeypatch.setattr(worker_keeper, "Child", start_fake)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """What the test starts; it fails if something is left at its end."""
    yield from watch(monkeypatch)


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
