"""The interpreter's verdict on a config, from a process of its own."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError
from autotune.executor.interpreter import check_interpreted
from autotune.registry import get_implementation
from autotune.shape import AttentionShape, PagedShape
from autotune.space import Config
from autotune.trial import Status
from tests.executor.faulty import GATE, OURS, SHAPE, config
from tests.executor.processes import Processes
from tests.outside import row_scale
from tests.outside.row_scale.space import IMPLEMENTATION, RowShape

pytestmark = pytest.mark.usefixtures("processes")


def test_the_real_kernel_is_right_in_float16() -> None:
    triton = get_implementation("flash_attention", "triton")
    shape = AttentionShape(batch=1, heads=2, kv_heads=1, seq_q=17, seq_kv=40, head_dim=16, causal=True)
    verdict, dtype = check_interpreted(triton, triton.space.default(shape, NVIDIA_H200), shape)
    assert (verdict.status, verdict.message, dtype) == (Status.OK, "", "float16")
    assert verdict.error is not None
    assert verdict.error_limit is not None
    assert 0.0 < verdict.error <= verdict.error_limit < 0.1


@pytest.mark.slow
def test_caches_and_partial_results_are_of_float16_too() -> None:
    triton = get_implementation("paged_decode", "triton")
    shape = PagedShape(batch=2, heads=2, kv_heads=1, max_context=600, head_dim=16, page_size=16)
    tile = Config(schedule="split", BLOCK_ROWS=16, HEADS=1, BLOCK_K=32, num_warps=2, num_stages=2)
    split = Config(NUM_SPLITS=16, COMBINE="kernel", PARTIALS="bfloat16")
    verdict, dtype = check_interpreted(triton, Config({**tile, **split}), shape)
    assert (verdict.status, verdict.message, dtype) == (Status.OK, "", "float16")


@pytest.mark.parametrize(
    ("run", "status", "message"),
    [
        pytest.param("print", Status.OK, "", marks=pytest.mark.slow),
        ("wrong", Status.WRONG_RESULT, "largest error"),
        pytest.param("nan", Status.NAN_RESULT, "512 of 512 elements are NaN", marks=pytest.mark.slow),
        pytest.param(
            *("raise", Status.LAUNCH_ERROR, "exit status 1: RuntimeError: the launch was refused"),
            marks=pytest.mark.slow,
        ),
        pytest.param("die", Status.LAUNCH_ERROR, "exit status 9: last words", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_kernel_is_caught_and_a_dead_one_reported(run: str, status: Status, message: str) -> None:
    verdict, dtype = check_interpreted(OURS, config(run=run), SHAPE)
    assert (verdict.status, dtype) == (status, "float16")
    assert verdict.message.startswith(message)


def test_an_endless_kernel_is_ended_in_the_time_that_is_left_and_not_refuted(processes: Processes) -> None:
    started = time.monotonic()
    with pytest.raises(MissingDependencyError, match="cannot check numbers on this machine: it took longer than"):
        check_interpreted(OURS, config(run="hang"), SHAPE, timeout=0.2)
    assert time.monotonic() - started < 10.0
    processes.wait_for(0)


def test_an_interpreter_that_is_stopped_holds_no_search(processes: Processes) -> None:
    def stop() -> None:
        for pid in processes.wait_for(1):
            os.kill(pid, signal.SIGSTOP)

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(MissingDependencyError, match="it took longer than the 2 s"):
        check_interpreted(OURS, config(), SHAPE, timeout=2.0)
    stopping.join()
    processes.wait_for(0)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["killed_once", "killed"])
def test_a_killed_interpreter_is_tried_again_and_refutes_nothing(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GATE, str(tmp_path / "gate"))
    if run == "killed_once":
        assert check_interpreted(OURS, config(run=run), SHAPE)[0].status is Status.OK
        return
    with pytest.raises(MissingDependencyError, match=r"it was killed from outside \(exit status -9\)"):
        check_interpreted(OURS, config(run=run), SHAPE)


@pytest.mark.slow
def test_a_machine_that_is_out_of_memory_refutes_nothing() -> None:
    with pytest.raises(MissingDependencyError, match="on this machine: MemoryError: no more"):
        check_interpreted(OURS, config(run="starved"), SHAPE)


@pytest.mark.slow
def test_a_shape_without_a_dtype_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    row_scale.register(monkeypatch)
    verdict, dtype = check_interpreted(IMPLEMENTATION, Config(ROWS=4), RowShape(rows=5, width=16, kind="bfloat16"))
    assert (verdict.status, verdict.message, dtype) == (Status.OK, "", "")
