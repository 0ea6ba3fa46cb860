"""What is said where a GPU, a problem or the compilers do not open; a worker that died once at it is forgiven."""

import os
import signal
from pathlib import Path

import pytest

from autotune import hardware
from autotune.errors import MissingDependencyError, SearchError
from autotune.executor import gpu, worker_keeper
from autotune.executor.compile_pool import Jobs
from autotune.executor.gpu import GpuExecutor
from autotune.trial import Status
from tests.executor.driving import answer, assert_works, start_executor
from tests.executor.fake_worker import TROUBLE
from tests.executor.faulty import OPERATION, SHAPE, UNLOADABLE, config
from tests.executor.processes import Processes


@pytest.fixture
def trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is written here makes every worker fail before it is asked anything."""
    monkeypatch.setenv(TROUBLE, str(tmp_path / "trouble"))
    return tmp_path / "trouble"


def test_no_gpu_is_an_error_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    with pytest.raises(MissingDependencyError, match="no GPU is visible"):
        GpuExecutor()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("die", "the GPU cannot be opened: exit status 1: the driver is gone; run `autotune doctor`"),
        ("hang", "the GPU cannot be opened: no answer within 1 s; run `autotune doctor`"),
    ],
)
def test_a_gpu_that_does_not_open_is_an_error(
    own_processes: Processes, trouble: Path, monkeypatch: pytest.MonkeyPatch, word: str, message: str
) -> None:
    trouble.write_text(word)
    monkeypatch.setattr(worker_keeper, "START_SECONDS", 1.0)
    with pytest.raises(MissingDependencyError) as caught:
        start_executor()
    assert str(caught.value) == message
    own_processes.wait_for(0)


def test_the_config_that_lost_the_gpu_is_known_before_the_error(own_processes: Processes, trouble: Path) -> None:
    executor = start_executor()
    executor.open(OPERATION, SHAPE)
    assert_works(executor)
    trouble.write_text("die")
    assert answer(executor, config(run="die")).status is Status.WORKER_DIED
    for _ in range(2):
        with pytest.raises(MissingDependencyError, match="the driver is gone"):
            answer(executor, config())
        executor.open(OPERATION, SHAPE)
    trouble.unlink()
    assert_works(executor)
    executor.close()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("refuse to open", "out of memory"),
        ("die when opening", "exit status 1: killed"),
        ("hang when opening", "no answer within 1 s"),
    ],
)
def test_a_problem_that_does_not_open_is_no_configs_fault(
    own_processes: Processes, trouble: Path, monkeypatch: pytest.MonkeyPatch, word: str, message: str
) -> None:
    monkeypatch.setattr(worker_keeper, "OPEN_SECONDS", 1.0)
    executor = start_executor()
    trouble.write_text(word)
    executor.open(OPERATION, SHAPE)
    expected = f"the inputs of faulty cannot be made on this GPU: {message}; free its memory or choose a smaller shape"
    with pytest.raises(SearchError) as caught:
        answer(executor, config())
    assert str(caught.value) == expected
    with pytest.raises(SearchError, match=message):
        executor.race([config()], seconds=0.1)
    trouble.unlink()
    assert_works(executor)  # without another ``open``
    executor.close()


def test_a_worker_that_died_once_while_opening_is_forgiven(own_processes: Processes) -> None:
    executor = start_executor()
    executor.open(OPERATION, SHAPE)
    os.kill(executor._workers.pid, signal.SIGKILL)
    assert_works(executor)
    executor.close()


def test_a_worker_that_died_once_while_starting_is_forgiven(own_processes: Processes, trouble: Path) -> None:
    executor = start_executor()
    executor.open(OPERATION, SHAPE)
    for _ in range(2):
        trouble.write_text("die once")
        assert answer(executor, config(run="die")).status is Status.WORKER_DIED
        assert_works(executor)
        assert not trouble.exists()
    executor.close()


def test_the_limit_of_compilers_is_told(own_processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "limit_jobs", lambda wanted: Jobs(1, "900 MiB of free memory"))
    executor = start_executor()
    assert (executor.jobs.reason, executor.capacity) == ("900 MiB of free memory", 2)
    executor.close()


def test_a_compile_server_that_dies_of_its_problem_is_given_up(
    own_processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "MAX_POOL_DEATHS", 1)
    executor = start_executor()
    executor.open(UNLOADABLE, SHAPE)
    executor.submit(config())
    with pytest.raises(MissingDependencyError, match=r"compilers do not work: exit status 1: .*NO_SUCH_KERNEL"):
        executor.collect()
    executor.close()
