"""Binaries that compile and that no device can hold, and the driver that they are compiled under."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.device import Device, architecture
from autotune.executor.compiler import compile_candidate, target_driver
from autotune.space import Config
from autotune.trial import Candidate, Status

B200 = Device(name="NVIDIA B200", arch="sm_100", sm_count=148, memory_mib=183359)


@pytest.mark.parametrize(
    ("shared", "columns", "message"),
    [
        (227 * 1024, 512, ""),
        (227 * 1024 + 1, 0, "232449 bytes of shared memory, sm_100 has 232448"),
        (0, 513, "513 columns of tensor memory, sm_100 has 512"),
        (0, None, ""),
    ],
)
def test_what_takes_more_memory_than_there_is_is_out_of_resources(
    shared: int, columns: int | None, message: str
) -> None:
    fine = SimpleNamespace(metadata=SimpleNamespace(shared=16, tmem_size=None), asm={})
    compiled = SimpleNamespace(metadata=SimpleNamespace(shared=shared, tmem_size=columns), asm={})
    for binaries in ((compiled,), (fine, compiled), (compiled, fine)):  # any of a launch
        kernel: Any = SimpleNamespace(warmup=lambda config, shape, binaries=binaries, **_: binaries)
        outcome = compile_candidate(kernel, Candidate("triton", Config()), SimpleNamespace(), B200)  # type: ignore[arg-type]
        assert outcome.message == message
        assert outcome.status == (Status.OUT_OF_RESOURCES if message else Status.OK)
        assert outcome.resources.shared_bytes == (max(shared, 16) if len(binaries) > 1 else shared)


def test_a_module_may_ask_for_the_device_as_it_is_imported() -> None:
    driver = target_driver(architecture("sm_90"))  # as tutorials do: triton.runtime.driver.active.get_...()
    assert driver.get_active_torch_device() == torch.device("cuda", 0)
    assert driver.get_device_interface() is torch.cuda
    assert driver.get_current_target().backend == "cuda"
