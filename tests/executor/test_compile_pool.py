"""Every way to fail at compiling is an outcome; the server survives it and leaves nothing behind."""

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.device import NVIDIA_H200
from autotune.executor.child import ChildDiedError
from autotune.executor.compile_pool import CompilePool
from autotune.registry import get_operation
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Outcome, Resources, Status
from tests.executor.faulty import COMPILES, GATE, OPERATION, SHAPE, UNLOADABLE, config
from tests.executor.processes import Processes, watch

PATIENCE_SECONDS = 60.0
TIMEOUT_SECONDS = 2.0


def receive(pool: CompilePool) -> Outcome:
    outcome = pool.receive(PATIENCE_SECONDS)
    assert outcome is not None
    return outcome


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Config, Outcome]]:
    """Every fault through one pool, then a good config; on leaving, nothing of it lives."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv(GATE, str(tmp_path_factory.mktemp("gate")))  # open
        watched = watch(monkeypatch)
        next(watched)
        pool = CompilePool(NVIDIA_H200, jobs=3, timeout=TIMEOUT_SECONDS)
        pool.open(OPERATION, SHAPE)
        configs = [config(compile=fault) for fault in (*reversed(COMPILES), "fine")]
        for each in configs:
            pool.submit(each)
        found = [receive(pool) for _ in configs]
        pool.close()
        yield {outcome.config: outcome for outcome in found}
        next(watched, None)


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ("fine", Status.OK, ""),
        ("gate", Status.OK, ""),
        ("print", Status.OK, ""),
        ("raise", Status.COMPILE_ERROR, "ValueError: no such instruction in line 2"),
        ("exit", Status.COMPILE_ERROR, "the compiler ended with exit status 3"),
        ("segfault", Status.COMPILE_ERROR, "the compiler ended with exit status -11"),
        ("nothing", Status.COMPILE_ERROR, "the compiler ended with exit status 1"),
        ("huge", Status.OUT_OF_RESOURCES, "1000000 bytes of shared memory, sm_90 has 232448"),
        ("hang", Status.COMPILE_TIMEOUT, "compiling took longer than 2 s"),
        ("grandchild", Status.COMPILE_TIMEOUT, "compiling took longer than 2 s"),
    ],
)
def test_a_compile_ends_with_its_status(
    outcomes: dict[Config, Outcome], fault: str, status: Status, message: str
) -> None:
    outcome = outcomes[config(compile=fault)]
    assert (outcome.status, outcome.message) == (status, message)
    assert (outcome.compile_seconds is not None) == (fault in ("fine", "gate", "print", "raise", "huge"))
    shared = {"huge": 10**6}.get(fault, 1024 if status is Status.OK else None)
    assert outcome.resources == Resources(shared_bytes=shared)


def test_every_fault_was_tried(outcomes: dict[Config, Outcome]) -> None:
    assert outcomes.keys() == {config(compile=fault) for fault in COMPILES}


@pytest.fixture
def pool(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompilePool]:
    monkeypatch.setenv(GATE, str(tmp_path / "gate"))  # closed until touched
    pool = CompilePool(NVIDIA_H200, jobs=2, timeout=PATIENCE_SECONDS)
    yield pool
    pool.close()
    pool.close()


def test_another_problem_ends_what_was_compiling(pool: CompilePool, processes: Processes) -> None:
    pool.open(OPERATION, SHAPE)
    assert pool.receive(0.0) is None
    for fault in ("grandchild", "hang", "fine"):
        pool.submit(config(compile=fault))
    processes.wait_for(4)  # the server, two compilers and what one of them started; "fine" waits
    pool.open(OPERATION, SHAPE)
    pool.submit(config(compile="huge"))
    assert receive(pool).config == config(compile="huge")
    assert pool.receive(0.0) is None
    processes.wait_for(1)


def test_an_answer_to_the_last_problem_is_dropped(pool: CompilePool, processes: Processes, tmp_path: Path) -> None:
    pool.open(OPERATION, SHAPE)
    pool.submit(config())
    assert select.select([pool], [], [], PATIENCE_SECONDS)[0]  # the answer waits
    pool.open(OPERATION, SHAPE)
    pool.submit(config(compile="gate"))
    (compiler,) = processes.wait_for(2) - {pool._child.pid}
    os.kill(pool._child.pid, signal.SIGSTOP)  # so that it will find both events at once
    pool.open(OPERATION, SHAPE)
    (tmp_path / "gate").touch()
    processes.wait_until(lambda living: compiler not in living)
    os.kill(pool._child.pid, signal.SIGCONT)
    pool.submit(config(compile="raise"))
    assert receive(pool).config == config(compile="raise")


def test_closing_ends_compilers_and_what_they_started(pool: CompilePool, processes: Processes) -> None:
    pool.open(OPERATION, SHAPE)
    for fault in ("grandchild", "hang"):
        pool.submit(config(compile=fault))
    processes.wait_for(4)
    pool.close()
    processes.wait_for(0)


def test_a_kernel_that_cannot_be_imported_is_the_servers_last_word(pool: CompilePool) -> None:
    pool.open(UNLOADABLE, SHAPE)
    with pytest.raises(ChildDiedError, match=r"exit status 1: AttributeError: .*NO_SUCH_KERNEL"):
        pool.receive(PATIENCE_SECONDS)


# The real kernel and the real compiler


def _attention_config(**values: int) -> Config:
    small: dict[str, int | str] = {"BLOCK_Q": 16, "BLOCK_K": 16, "num_warps": 1, "num_stages": 2, "loads": "pointer"}
    return Config({**small, **dict.fromkeys(("waves_per_eu", "matrix_instr_nonkdim", "kpack")), **values})


def test_real_configs_have_the_resources_of_the_target(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # compile, whatever is in the user's cache
    shape = AttentionShape(batch=1, heads=2, seq_q=1024, head_dim=128, causal=True)
    fits = _attention_config()
    too_large = _attention_config(BLOCK_K=128, num_stages=5, num_warps=4)
    pool = CompilePool(NVIDIA_H200, jobs=2, timeout=PATIENCE_SECONDS)
    pool.open(get_operation("flash_attention"), shape)
    for each in (fits, too_large):
        pool.submit(each)
    found = {outcome.config: outcome for outcome in (receive(pool), receive(pool))}
    pool.close()
    assert found[fits].status is Status.OK
    resources = found[fits].resources
    assert None not in (resources.shared_bytes, resources.registers, resources.spill_bytes)
    assert 0 < (resources.shared_bytes or 0) < NVIDIA_H200.shared_memory_bytes
    assert 16 < (resources.registers or 0) <= 255
    assert (found[fits].compile_seconds or 0.0) > 0.0
    refused = found[too_large]
    assert refused.status is Status.OUT_OF_RESOURCES
    assert (refused.resources.shared_bytes or 0) > NVIDIA_H200.shared_memory_bytes
    assert refused.message == f"{refused.resources.shared_bytes} bytes of shared memory, sm_90 has 232448"
