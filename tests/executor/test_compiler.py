"""Binaries that compile and that no device can hold."""

from types import SimpleNamespace

import pytest

from autotune.device import Device
from autotune.executor import compiler
from autotune.executor.compiler import compile_config
from autotune.space import Config
from autotune.trial import Resources, Status

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
    shared: int, columns: int | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = SimpleNamespace(metadata=SimpleNamespace(tmem_size=columns))
    kernel = SimpleNamespace(warmup=lambda config, shape: compiled)
    monkeypatch.setattr(compiler, "read_resources", lambda given: Resources(shared))
    outcome = compile_config(kernel, Config(), SimpleNamespace(), B200)  # type: ignore[arg-type]
    assert outcome.message == message
    assert outcome.status == (Status.OUT_OF_RESOURCES if message else Status.OK)
