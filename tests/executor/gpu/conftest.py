"""Fixtures of the tests of the GPU's executor: no GPU is needed, for its worker is the fake one."""

from collections.abc import Iterator

import pytest

from autotune.executor.gpu import GpuExecutor
from tests.executor.driving import replace_gpu, start_executor
from tests.executor.faulty import OPERATION, SHAPE
from tests.executor.processes import Processes, watch


@pytest.fixture(scope="module")
def shared_processes() -> Iterator[Processes]:
    """Those of the shared executor."""
    with pytest.MonkeyPatch.context() as monkeypatch, watch(monkeypatch) as processes:
        replace_gpu(monkeypatch)
        yield processes


@pytest.fixture(scope="module")
def shared_executor(shared_processes: Processes) -> Iterator[GpuExecutor]:
    """One executor for all faults of a module in turn: that it goes on is what is tested."""
    executor = start_executor()
    yield executor
    executor.close()
    executor.close()


@pytest.fixture
def executor(shared_executor: GpuExecutor) -> GpuExecutor:
    """The shared executor, at a problem opened anew."""
    shared_executor.open(OPERATION, SHAPE)
    return shared_executor


@pytest.fixture
def own_processes(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> Processes:
    """Those of the executor that the test starts itself."""
    replace_gpu(monkeypatch)
    return processes
