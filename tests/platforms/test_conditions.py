"""Clocks, heat and other processes while something is measured, and the state of this process's own context."""

import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from autotune import platforms
from autotune.platforms import nvidia
from autotune.trial import Conditions
from tests.platforms.fake_machine import (
    NOT_FOUND,
    NOT_SUPPORTED,
    FakeNVML,
    fake_torch,
    install,
    refuse,
    running,
    samples,
)


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        (0x0, ""),
        (0x1, ""),
        (0x4, "power"),
        (0x20 | 0x40, "thermal"),
        (0x4 | 0x8 | 0x80, "hardware, power, power brake"),
    ],
)
def test_conditions_name_what_holds_the_clocks_back(monkeypatch: pytest.MonkeyPatch, reasons: int, text: str) -> None:
    install(monkeypatch, torch=fake_torch(), pynvml=FakeNVML(nvmlDeviceGetCurrentClocksEventReasons=reasons))
    assert platforms.Watch(None).end() == Conditions(1980, 1980, 41, text, contended=False)


@pytest.mark.parametrize("is_worse_first", [True, False])
def test_of_two_readings_the_worse_counts(monkeypatch: pytest.MonkeyPatch, is_worse_first: bool) -> None:
    def turn(better: Any, worse: Any) -> Callable[..., Any]:
        answers = iter((worse, better) if is_worse_first else (better, worse))
        return lambda *arguments: next(answers)

    clocks = {1: turn(1980, 1200), 2: turn(3201, 2619)}
    nvml = FakeNVML(
        nvmlDeviceGetClockInfo=lambda handle, kind: clocks[kind](),
        nvmlDeviceGetTemperature=turn(41, 83),
        nvmlDeviceGetCurrentClocksEventReasons=turn(0x4, 0x20 | 0x8),
        nvmlDeviceGetComputeRunningProcesses=turn(running(1), running(1, 2)),
    )
    install(monkeypatch, torch=fake_torch(), pynvml=nvml)
    worst = Conditions(1200, 2619, 83, "hardware, power, thermal", contended=True)
    assert platforms.Watch(None).end() == worst


@pytest.mark.parametrize(
    ("own_pid", "utilization", "contended"),
    [
        (1, samples(pid_1=90), False),
        (1, samples(pid_1=90, pid_2=0), False),  # it holds a context, and rests
        (1, samples(pid_1=90, pid_2=5), True),
        (1, refuse(NOT_FOUND), False),  # nobody computed
        (1, refuse(NOT_SUPPORTED), True),  # two processes are listed: more is not known
        (None, samples(pid_1=90), True),  # which of them we are is not known
    ],
)
def test_contention_is_another_process_that_computes(
    monkeypatch: pytest.MonkeyPatch, own_pid: int | None, utilization: Any, contended: bool
) -> None:
    nvml = FakeNVML(nvmlDeviceGetComputeRunningProcesses=running(1, 2), nvmlDeviceGetProcessUtilization=utilization)
    install(monkeypatch, torch=fake_torch(), pynvml=nvml)
    assert platforms.Watch(own_pid).end().contended is contended


def test_contention_is_asked_since_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((1000.0, 1500.0))
    monkeypatch.setattr(time, "time", lambda: next(now))
    nvml = FakeNVML(nvmlDeviceGetProcessUtilization=samples(pid_2=5))
    install(monkeypatch, torch=fake_torch(), pynvml=nvml)
    assert platforms.Watch(1).end().contended
    assert "nvmlDeviceGetProcessUtilization ('board', 999000000)" in nvml.asked  # microseconds, one sample earlier


@pytest.mark.parametrize(
    ("before", "after", "own_pid"),
    [
        ({}, {"board": (4711,)}, 4711),  # the host's number for us
        ({"board": (7,), "other": (8,)}, {"board": (7, 4711), "other": (8,)}, 4711),
        ({"board": (12,)}, {"board": (12,)}, 12),  # our context was there before
        ({"board": (7,)}, {"board": (7, 4711, 4712)}, None),  # another came at the same moment
        ({"board": (7,)}, {"board": (7,)}, None),  # a container is not shown its own processes
        ({}, {"other": (4711,)}, None),
    ],
)
def test_our_process_is_the_one_that_appears_with_our_context(
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, tuple[int, ...]],
    after: dict[str, tuple[int, ...]],
    own_pid: int | None,
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 12)
    listed = [before]
    nvml = FakeNVML(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=("board", "other").__getitem__,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: running(*listed[-1].get(handle, ())),
    )
    torch = fake_torch()
    ask_torch = torch.cuda.get_device_properties

    def properties(index: int) -> Any:
        assert listed[-1] is after, "asked before: that may create the context"
        return ask_torch(index)

    torch.cuda.get_device_properties = properties
    torch.zeros = lambda size, device: listed.append(after)
    install(monkeypatch, torch=torch, pynvml=nvml)
    assert platforms.open_context() == own_pid
    assert listed == [before, after]
    nvidia._nvml_handle.cache_clear()
    install(monkeypatch, pynvml=None)
    assert platforms.open_context() is None


def test_conditions_that_a_board_does_not_tell_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = [name for name in vars(FakeNVML()) if name.startswith("nvmlDeviceGet")]
    told = "nvmlDeviceGetHandleByUUID"
    nvml = FakeNVML(*(name for name in questions if name != told))
    install(monkeypatch, torch=fake_torch(), pynvml=nvml)
    assert platforms.Watch(1).end() == Conditions()
    nvidia._nvml_handle.cache_clear()
    install(monkeypatch, pynvml=None)
    assert platforms.Watch(1).end() == Conditions()


@pytest.mark.parametrize(
    ("errors", "is_alive"),
    [
        ([], True),
        ([RuntimeError("an error that was left behind")], True),
        ([RuntimeError("unknown error")] * 2, False),
        ([MemoryError("the GPU is full")], True),
    ],
)
def test_a_context_is_dead_when_every_call_fails(
    monkeypatch: pytest.MonkeyPatch, errors: list[Exception], is_alive: bool
) -> None:
    left = list(errors)

    def synchronize(index: int) -> None:
        if left:
            raise left.pop(0)

    tensor = SimpleNamespace(item=lambda: 1.0)
    tensor.add_ = lambda value: tensor
    cuda = SimpleNamespace(synchronize=synchronize, OutOfMemoryError=MemoryError)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, zeros=lambda count, device: tensor))
    assert platforms.is_context_alive() is is_alive
    assert left == []
