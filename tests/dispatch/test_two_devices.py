"""Two GPUs of different models in one process: tensors on each are served each one's rows."""

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch

from autotune import attention, paged_decode, platforms
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import get_kernel, pick_for_device
from autotune.dispatch import kernel as kernel_module
from autotune.space import Config
from tests import sample
from tests.dispatch.tables import SLOWER, Tables

H100: Final = Device(name="NVIDIA H100 80GB HBM3", arch="sm_90", sm_count=132, memory_mib=81559, power_cap_watts=700)
DEVICES: Final = {0: NVIDIA_H200, 1: H100}


@pytest.fixture
def two_gpus(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> Tables:
    """An H200 at index 0, an H100 at index 1, and a winner of its own for each."""

    def read(index: int | None = None) -> Device:
        return DEVICES[platforms.current_index() if index is None else index]

    monkeypatch.setattr(platforms, "current_device", read)
    tables.tune(sample.trial(), sample.trial(chosen=SLOWER, device=H100))
    return tables


def test_an_index_is_served_its_own_rows(two_gpus: Tables) -> None:
    shape = sample.shape()
    for index, config in ((0, sample.FAST), (1, SLOWER), (0, sample.FAST)):
        kernel = pick_for_device(shape, index, "flash_attention")
        assert (kernel.config, kernel.provenance.rung) == (config, "exact")


def test_get_kernel_follows_the_current_gpu(two_gpus: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = sample.shape()
    for index, config in ((0, sample.FAST), (1, SLOWER), (0, sample.FAST)):
        monkeypatch.setattr(platforms, "current_index", lambda index=index: index)
        for asked in (shape, sample.shape()):
            assert get_kernel(asked).config == config


def test_functions_pick_by_the_gpu_of_their_tensors(two_gpus: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[tuple[Device, Config]] = []
    asked: list[int] = []

    class Kernel:
        def bind(self, config: Config, shape: Any) -> Callable[..., object]:
            bound.append((DEVICES[asked[-1]], config))
            return lambda *tensors, **options: config

    def gpu_of(tensor: torch.Tensor) -> int:
        asked.append(int(tensor.flatten()[0]))  # the test's tensors lie on the CPU and hold their index
        return asked[-1]

    monkeypatch.setattr(kernel_module, "load_kernel", lambda operation, implementation: Kernel())
    monkeypatch.setattr("autotune.eager_calls.gpu_of", gpu_of)
    for index, config in ((0, sample.FAST), (1, SLOWER), (0, sample.FAST)):
        q = torch.full((16, 1024, 16, 128), float(index), dtype=torch.bfloat16)
        served: object = attention(q, q, q, causal=True)
        assert served == config
    assert [device.name for device, _ in bound] == [NVIDIA_H200.name, H100.name]
    cache = torch.zeros(4, 16, 2, 64, dtype=torch.float16)
    for index in (1, 0):
        q = torch.full((2, 8, 64), float(index), dtype=torch.float16)
        paged_decode(q, cache, cache, torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, dtype=torch.int32))
        assert bound[-1][0] == DEVICES[index]
