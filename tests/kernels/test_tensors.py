"""Kernels are launched on the GPU of their tensors; and what every call refuses."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.errors import InputMismatchError
from autotune.kernels.tensors import check_device, on_device_of, require_context


@pytest.mark.parametrize(
    ("place", "entered"), [("cuda:0", []), ("cuda:1", ["cuda:1"]), ("cpu", []), ("meta", [])], ids=str
)
def test_a_launch_is_on_the_gpu_of_its_tensors(monkeypatch: pytest.MonkeyPatch, place: str, entered: list[str]) -> None:
    """Another GPU than the current one is made current for the launch, and left again."""
    current = ["cuda:0"]

    class Guard:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            current.append(str(self.device))

        def __exit__(self, *_: object) -> None:
            current.pop()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device(current[-1]).index)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    tensor: Any = SimpleNamespace(device=torch.device(place))
    with on_device_of(tensor):
        assert current[1:] == entered
        with on_device_of(tensor):
            assert current[1:] == entered
    assert current == ["cuda:0"]


def test_any_gpu_is_a_place_for_kernels_and_the_cpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    for index in range(2):
        check_device(torch.device("cuda", index), torch.bfloat16)
    with pytest.raises(InputMismatchError, match="the tensors are on the CPU; expected a GPU"):
        check_device(torch.device("cpu"), torch.float16)


def test_bfloat16_is_not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)
    check_device(torch.device("cpu"), torch.float16)
    with pytest.raises(InputMismatchError, match="the tensors are bfloat16 on the CPU"):
        check_device(torch.device("cpu"), torch.bfloat16)


def test_a_context_is_made_once_a_thread_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: made.append(str(device)))

    def ask() -> None:
        for place in ("meta", "cpu", "cuda:1", "cuda:1"):
            require_context(torch.device(place))

    for count in (1, 2):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert made == ["cuda:1"] * count


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_gpu_the_second_is_current_within_alone() -> None:
    with on_device_of(torch.empty(1, device="cuda:1")):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
