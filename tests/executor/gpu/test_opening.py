"""Errors where a GPU, a problem or the compilers do not open; a worker that died once at it is forgiven."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import platforms
from autotune.errors import MissingDependencyError, SearchError
from autotune.executor import compile_pool, gpu_children, worker_keeper
from autotune.executor.child import Child
from autotune.executor.compile_pool import CompilePool, Jobs
from autotune.executor.gpu import GpuExecutor
from autotune.executor.gpu_children import start_children
from autotune.executor.settings import Settings
from autotune.trial import Status
from tests import sample
from tests.executor.driving import answer, assert_works, start_executor
from tests.executor.fake_worker import TROUBLE
from tests.executor.faulty import OPERATION, SHAPE, candidate
from tests.executor.processes import Processes


@pytest.fixture
def trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose word makes every worker fail before it is asked anything."""
    monkeypatch.setenv(TROUBLE, str(tmp_path / "trouble"))
    return tmp_path / "trouble"


def test_no_gpu_is_an_error_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sample.hide_gpu(monkeypatch)
    with pytest.raises(MissingDependencyError, match="no GPU is visible"):
        GpuExecutor()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("die", "the GPU cannot be opened: exit status 1: the driver is gone; run `autotune doctor`"),
        pytest.param(
            *("hang", "the GPU cannot be opened: no answer within 1 s; run `autotune doctor`"), marks=pytest.mark.slow
        ),
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


@pytest.mark.slow
def test_the_config_that_lost_the_gpu_is_known_before_the_error(own_processes: Processes, trouble: Path) -> None:
    executor = start_executor()
    executor.open(OPERATION, SHAPE)
    assert_works(executor)
    trouble.write_text("die")
    assert answer(executor, candidate(run="die")).status is Status.WORKER_DIED
    for _ in range(2):
        with pytest.raises(MissingDependencyError, match="the driver is gone"):
            answer(executor, candidate())
        executor.open(OPERATION, SHAPE)
    trouble.unlink()
    assert_works(executor)
    executor.close()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("refuse to open", "out of memory"),
        pytest.param("die when opening", "exit status 1: killed", marks=pytest.mark.slow),
        pytest.param("hang when opening", "no answer within 1 s", marks=pytest.mark.slow),
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
        answer(executor, candidate())
    assert str(caught.value) == expected
    with pytest.raises(SearchError, match=message):
        executor.race([candidate()], seconds=0.1)
    trouble.unlink()
    assert_works(executor)  # without another ``open``
    executor.close()


@pytest.mark.slow
def test_a_worker_that_died_once_while_opening_is_forgiven(own_processes: Processes) -> None:
    executor = start_executor()
    executor.open(OPERATION, SHAPE)
    os.kill(executor._workers.pid, signal.SIGKILL)
    assert_works(executor)
    executor.close()


@pytest.mark.slow
def test_a_worker_that_died_once_while_starting_is_forgiven(own_processes: Processes, trouble: Path) -> None:
    executor = start_executor()
    executor.open(OPERATION, SHAPE)
    for _ in range(2):
        trouble.write_text("die once")
        assert answer(executor, candidate(run="die")).status is Status.WORKER_DIED
        assert_works(executor)
        assert not trouble.exists()
    executor.close()


def test_children_that_were_started_ahead_are_used_and_tell_when_they_were_ready(own_processes: Processes) -> None:
    settings = Settings(jobs=2, screen_seconds=2.0, compile_seconds=20.0)
    children = start_children(settings)
    ahead = own_processes.wait_for(2)  # their environments show a moment after their start
    executor = GpuExecutor(settings, children)
    executor.open(OPERATION, SHAPE)
    assert_works(executor)
    assert ahead <= own_processes.living()
    steps = executor.reached
    assert steps.keys() == {"gpu_identified", "gpu_opened", "problem_opened", "first_compiled"}
    assert steps["gpu_identified"] <= steps["gpu_opened"] <= steps["problem_opened"]
    executor.close()
    children.close()


@pytest.mark.slow
def test_the_limit_of_compilers_is_told(own_processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_children, "limit_jobs", lambda wanted: Jobs(1, "900 MiB of free memory"))
    executor = start_executor()
    assert (executor.jobs.reason, executor.capacity) == ("900 MiB of free memory", 2)
    executor.close()


def test_a_kernel_that_cannot_be_imported_is_told(own_processes: Processes) -> None:
    executor = start_executor()
    executor.open(OPERATION, SHAPE)
    with pytest.raises(MissingDependencyError, match=r"cannot compile kernels: unloadable: .*NO_SUCH_KERNEL"):
        answer(executor, candidate("unloadable"))
    assert_works(executor)
    executor.close()


def test_a_compile_server_that_dies_again_and_again_is_given_up(
    own_processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_pool, "MAX_DEATHS", 1)
    executor = start_executor()
    executor.open(OPERATION, SHAPE)
    monkeypatch.setattr(CompilePool, "_start", lambda pool: Child("tests.executor.dies_at_once"))
    os.kill(executor._pool._child.pid, signal.SIGKILL)
    with pytest.raises(MissingDependencyError, match=r"cannot compile kernels: exit status 1: no more; run"):
        answer(executor, candidate())
    executor.close()


@pytest.mark.parametrize(("index", "opened"), [(None, 1), (0, 0), (2, 2)])
@pytest.mark.slow
def test_a_process_that_holds_a_context_is_warned_and_measures_on_its_current_gpu(
    own_processes: Processes, monkeypatch: pytest.MonkeyPatch, index: int | None, opened: int
) -> None:
    """As in a notebook; the GPU may be another by its index."""
    started: list[dict[str, Any]] = []
    start_child: Any = vars(worker_keeper)["Child"]  # the fake one

    def note(module: str, *arguments: str) -> Child:
        started.append(json.loads(arguments[0]))
        child: Child = start_child(module, *arguments)
        return child

    monkeypatch.setattr(worker_keeper, "Child", note)
    monkeypatch.setattr(platforms, "_ask_index", None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 2, raising=False)
    with pytest.warns(
        RuntimeWarning, match="the GPU is shared with this process, which holds a CUDA context"
    ) as warned:
        executor = GpuExecutor(Settings(jobs=1, index=index))
    executor.open(OPERATION, SHAPE)
    assert_works(executor)
    executor.close()
    assert len(warned) == 1
    assert {settings["index"] for settings in started} == {opened}


def test_the_current_gpu_of_a_process_without_a_context_is_the_first(
    own_processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise AssertionError("asked, which creates a context")

    monkeypatch.setattr(torch.cuda, "current_device", refuse)
    start_executor().close()
