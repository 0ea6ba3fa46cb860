"""The interpreter's verdict on a config, from a process of its own."""

import pytest

from autotune.device import NVIDIA_H200
from autotune.executor import interpreter
from autotune.executor.interpreter import check_interpreted
from autotune.registry import get_operation
from autotune.shape import AttentionShape, PagedShape
from autotune.space import Config
from autotune.trial import Status
from tests.executor.faulty import OPERATION, SHAPE, config
from tests.executor.processes import Processes

pytestmark = pytest.mark.usefixtures("processes")


def test_the_real_kernel_is_right_in_float16() -> None:
    operation = get_operation("flash_attention")
    shape = AttentionShape(batch=1, heads=2, kv_heads=1, seq_q=17, seq_kv=40, head_dim=16, causal=True)
    verdict, dtype = check_interpreted(operation, operation.space.default(shape, NVIDIA_H200), shape)
    assert (verdict.status, verdict.message, dtype) == (Status.OK, "", "float16")
    assert verdict.error is not None
    assert verdict.error_limit is not None
    assert 0.0 < verdict.error <= verdict.error_limit < 0.1


def test_caches_and_partial_results_are_of_float16_too() -> None:
    operation = get_operation("paged_decode")
    shape = PagedShape(batch=2, heads=2, kv_heads=1, max_context=600, head_dim=16, page_size=16)
    tile = Config(schedule="split", BLOCK_ROWS=16, HEADS=1, BLOCK_K=32, num_warps=2, num_stages=2)
    split = Config(NUM_SPLITS=16, COMBINE="kernel", PARTIALS="bfloat16")
    verdict, dtype = check_interpreted(operation, Config({**tile, **split}), shape)
    assert (verdict.status, verdict.message, dtype) == (Status.OK, "", "float16")


@pytest.mark.parametrize(
    ("run", "status", "message"),
    [
        ("print", Status.OK, ""),
        ("wrong", Status.WRONG_RESULT, "largest error"),
        ("nan", Status.NAN_RESULT, "512 of 512 elements are NaN"),
        ("raise", Status.LAUNCH_ERROR, "exit status 1: RuntimeError: the launch was refused"),
        ("die", Status.LAUNCH_ERROR, "exit status 9: last words"),
    ],
)
def test_a_wrong_kernel_is_caught_and_a_dead_one_reported(run: str, status: Status, message: str) -> None:
    verdict, dtype = check_interpreted(OPERATION, config(run=run), SHAPE)
    assert (verdict.status, dtype) == (status, "float16")
    assert verdict.message.startswith(message)


def test_an_endless_kernel_is_ended(monkeypatch: pytest.MonkeyPatch, processes: Processes) -> None:
    monkeypatch.setattr(interpreter, "TIMEOUT_SECONDS", 0.2)
    verdict, _ = check_interpreted(OPERATION, config(run="hang"), SHAPE)
    assert (verdict.status, verdict.message) == (Status.HANG, "the interpreter took longer than 0 s")
    processes.wait_for(0)
