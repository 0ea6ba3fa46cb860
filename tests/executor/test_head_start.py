"""A head start: children before imports, a budget from the process's start, and nothing left over."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune import platforms
from autotune.executor import head_start
from autotune.executor.settings import Settings


class FakeChildren:
    """Children that remember whether they were ended."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> FakeChildren:
    """Those that are started where a driver is loaded, as it is."""
    fake = FakeChildren()
    monkeypatch.setattr(platforms, "has_driver", lambda: True)
    monkeypatch.setattr(head_start, "start_children", lambda settings: fake)
    return fake


def test_children_end_with_the_block_also_where_it_fails(children: FakeChildren) -> None:
    def work() -> None:
        with head_start.head_start(Settings()) as begun:
            assert begun.children is children  # type: ignore[comparison-overlap]
            assert not children.is_closed
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert children.is_closed


@pytest.mark.parametrize(("on_gpu", "driver"), [(False, True), (True, False)])
def test_none_are_started_where_they_are_not_needed(
    children: FakeChildren, monkeypatch: pytest.MonkeyPatch, on_gpu: bool, driver: bool
) -> None:
    monkeypatch.setattr(platforms, "has_driver", lambda: driver)
    with head_start.head_start(Settings(), on_gpu=on_gpu) as begun:
        assert begun == head_start.HeadStart()


def at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str, *, since_boot: float) -> None:
    """The system says this of the process, so many seconds after its boot; the monotonic clock is at 500."""
    (tmp_path / "stat").write_text(status)
    monkeypatch.setattr(head_start, "OWN_STATUS", tmp_path / "stat")
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    clock = SimpleNamespace(monotonic=lambda: 500.0, clock_gettime=lambda clock: since_boot, CLOCK_BOOTTIME=7)
    monkeypatch.setattr(head_start, "time", clock)


STATUS = "7 (a name) with) S" + " 1" * 18 + " 90000 5 5"  # the 22nd field: 900 s after the boot


@pytest.mark.parametrize(
    ("status", "since_boot", "expected"),
    [
        (STATUS, 902.5, 497.5),
        (STATUS, 900.0, 500.0),
        (STATUS, 990.0, 500.0),  # an old process, that did other things first
        (STATUS, 800.0, 500.0),  # started before it began: clocks of two kinds
        ("7 (cut) S 1 2", 902.5, 500.0),
        ("", 902.5, 500.0),
    ],
)
def test_a_budget_runs_from_the_start_of_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str, since_boot: float, expected: float
) -> None:
    at(monkeypatch, tmp_path, status, since_boot=since_boot)
    assert head_start.process_started() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say when a process was started")
def test_a_real_process_is_as_old_as_its_parent_says() -> None:
    code = "from autotune.executor.head_start import process_started; print(process_started())"
    before = time.monotonic()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert before - 0.05 <= float(found.stdout) <= time.monotonic()  # the system counts in hundredths
