"""Calls on this machine: their times, memory and operators."""

from collections.abc import Callable

import pytest
import torch

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.lab.suites import CpuMachine, GpuMachine
from autotune.trial import Conditions

MIB = 2**20


def test_the_processor_counts_what_a_call_holds_beside_its_result() -> None:
    def call() -> torch.Tensor:
        held = torch.ones(MIB // 4)  # 1 MiB
        more = held + 1.0  # and another, while the first is there
        del held
        return more[:16].clone()

    beside_numbers = 16  # bytes that torch takes for the 1.0
    assert 0 <= CpuMachine().extra_bytes(call) - (2 * MIB - 16 * 4) <= beside_numbers


def test_the_processor_times_all_calls_and_every_step() -> None:
    ran: list[str] = []
    calls = {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}
    times = CpuMachine().time(calls, rounds=4)
    assert {name: timing.samples for name, timing in times.items()} == {"a": 4, "b": 4}
    ran.clear()
    assert len(CpuMachine().steps(calls["a"], warmups=1, active=3)) == 3
    assert ran == ["a"] * 4


def test_the_processor_names_the_operators_of_a_call() -> None:
    left = torch.ones(64, 32)
    (product,) = [each for each in CpuMachine().operators(lambda: left @ left.T) if each.name == "aten::mm"]
    assert (product.calls, product.bytes) == (1, 64 * 64 * 4)


def test_the_processor_counts_what_an_entrant_keeps() -> None:
    def prepare() -> Callable[[], torch.Tensor]:
        kept = torch.ones(MIB // 4)  # 1 MiB
        return lambda: kept[:16] + 1.0

    call, held = CpuMachine().hold(prepare)
    assert held == MIB
    assert MIB <= CpuMachine().extra_bytes(call, prepared=held) < MIB + 4096


def test_the_gpu_is_watched_for_all_processes_but_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watch:
        def __init__(self, own_pid: int | None) -> None:
            self.own_pid = own_pid

        def end(self) -> Conditions:
            return Conditions(sm_clock_mhz=self.own_pid)

    monkeypatch.setattr(platforms, "Watch", Watch)
    monkeypatch.setattr(platforms, "open_context", lambda: 4711)
    monkeypatch.setattr(platforms, "current_device", lambda: NVIDIA_H200)
    assert GpuMachine().watch()() == Conditions(sm_clock_mhz=4711)
    assert (GpuMachine().gpu, GpuMachine().name) == (NVIDIA_H200, "NVIDIA H200")
