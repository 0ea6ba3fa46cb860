"""The memory that a call holds: the CPU's by torch's own profiler, a GPU's by a stand-in that counts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from autotune.allocations import Held, extra_bytes, held_by, measure_held, peak_of
from tests.executor.fake_cuda import FakeCuda, replace_cuda

MB = 10**6


def event(time: float, moved: int, address: int, device: int = 0) -> dict[str, Any]:
    return {"name": "[memory]", "ts": time, "args": {"Bytes": moved, "Addr": address, "Device Type": device}}


def test_the_highest_and_the_last_sum_are_those_of_what_lives_together() -> None:
    events = [
        event(4.0, -100, 1),
        event(1.0, 100, 1),
        event(2.0, 50, 2),
        event(3.0, -50, 2),
        event(5.0, 120, 3),
        event(6.0, 9000, 4, device=1),  # a GPU's
        event(7.0, -7000, 9),  # of before
        event(8.0, 29, 5),
        {"name": "aten::mm", "ts": 2.5},
    ]
    assert held_by(events) == Held(peak=150, kept=149)
    assert held_by([*events, event(9.0, 2, 6), event(9.5, -29, 5)]) == Held(peak=151, kept=122)
    assert held_by([]) == Held(0, 0)


def run() -> torch.Tensor:
    """Two of 1 MB at once; 1000 bytes of result."""
    first = torch.empty(1000, 250)
    second = first.clone()
    del first
    return second.sum(0)


def test_a_call_on_the_cpu_holds_its_temporaries_and_its_result() -> None:
    result, held = measure_held(run, "cpu")
    assert result.shape == (250,)
    assert held == Held(peak=2 * MB, kept=1000)  # the two, and not what is left of them
    assert peak_of(run, "cpu") == 2 * MB
    assert peak_of(lambda: None, "cpu") == 0


def test_extra_is_beside_a_result_of_the_call_s_own_or_one_made_before() -> None:
    assert extra_bytes(run, "cpu") == 2 * MB - 1000
    assert extra_bytes(run, "cpu", prepared=70) == 2 * MB - 1000 + 70
    out = torch.empty(250)

    def run_into() -> torch.Tensor:
        torch.empty(500).sum()  # 2000 bytes, and 4
        return out

    held = 300 + out.nbytes
    assert extra_bytes(run_into, "cpu", prepared=held) == 300 + 2000 + 4
    assert extra_bytes(lambda: out, "cpu") == 0  # it was held by somebody else
    assert extra_bytes(lambda: None, "cpu", prepared=5) == 5


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return replace_cuda(monkeypatch)


def allocate(cuda: FakeCuda, *sizes: int) -> Callable[[], None]:
    def call() -> None:
        for size in sizes:
            cuda.allocate(size)

    return call


def test_a_call_on_a_gpu_is_told_from_what_was_held_before(cuda: FakeCuda) -> None:
    cuda.allocate(9000)
    cuda.allocate(-4000)  # a peak of others
    _, held = measure_held(allocate(cuda, 300, 500, -600), "cuda")
    assert held == Held(peak=800, kept=200)
    assert peak_of(allocate(cuda, 70, -70), "cuda") == 70
    assert extra_bytes(allocate(cuda, 300, 500, -600), "cuda", prepared=11) == 800 - 200 + 11


@pytest.mark.gpu
def test_gpu_allocations_are_seen() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")

    def call() -> torch.Tensor:
        held = torch.empty(32 * MB, dtype=torch.uint8, device="cuda")
        return held[: 8 * MB].clone()

    assert extra_bytes(call, "cuda") == pytest.approx(32 * MB, abs=2**20)
    assert peak_of(call, "cuda") == pytest.approx(40 * MB, abs=2**21)
