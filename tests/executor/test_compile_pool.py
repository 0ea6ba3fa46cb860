"""Every way to fail at compiling is an outcome; the server survives it and leaves nothing behind."""

import os
import select
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError
from autotune.executor import compile_pool
from autotune.executor.compile_pool import CompilePool, Jobs, limit_jobs
from autotune.registry import get_operation
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Resources, Status
from tests.executor.faulty import COMPILES, GATE, OPERATION, SHAPE, candidate
from tests.executor.processes import Processes, watch

BELIEVED = tuple(fault for fault in COMPILES if fault != "unwritable")  # that is the machine's
PATIENCE_SECONDS = 60.0
TIMEOUT_SECONDS = 2.0
ALONE = "also when it ran alone, as where the host's memory runs out; free some"


def receive(pool: CompilePool) -> Outcome:
    outcome = pool.receive(PATIENCE_SECONDS)
    assert outcome is not None
    return outcome


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Candidate, Outcome]]:
    """Every fault through one pool, then a good config; on leaving, nothing of it lives."""
    with pytest.MonkeyPatch.context() as monkeypatch, watch(monkeypatch):
        monkeypatch.setenv(GATE, str(tmp_path_factory.mktemp("gate")))  # open
        pool = CompilePool(NVIDIA_H200, jobs=3, timeout=TIMEOUT_SECONDS)
        pool.open(OPERATION, SHAPE)
        configs = [candidate(compile=fault) for fault in reversed(BELIEVED)]  # "fine" comes last
        for each in configs:
            pool.submit(each)
        found = [receive(pool) for _ in configs]
        pool.close()
        yield {outcome.candidate: outcome for outcome in found}


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ("fine", Status.OK, ""),
        ("gate", Status.OK, ""),
        ("print", Status.OK, ""),
        ("raise", Status.COMPILE_ERROR, "ValueError: no such instruction in line 2"),
        ("exit", Status.COMPILE_ERROR, "the compiler ended with exit status 3"),
        ("segfault", Status.COMPILE_ERROR, "the compiler was ended by SIGSEGV"),
        ("abort", Status.COMPILE_ERROR, "the compiler was ended by SIGABRT"),
        ("killed_once", Status.OK, ""),
        ("killed", Status.OUT_OF_MEMORY, f"the compiler was killed from outside (SIGKILL), {ALONE}"),
        ("starved", Status.OUT_OF_MEMORY, f"RuntimeError: `ptxas` failed with error code -9, {ALONE}"),
        ("twin", Status.OK, ""),
        ("nothing", Status.COMPILE_ERROR, "TypeError: 'NoneType' object is not iterable"),
        ("huge_for_all", Status.OK, ""),
        ("huge", Status.OUT_OF_RESOURCES, "1000000 bytes of shared memory, sm_90 has 232448"),
        ("hang", Status.COMPILE_TIMEOUT, "compiling took longer than 2 s"),
        ("grandchild", Status.COMPILE_TIMEOUT, "compiling took longer than 2 s"),
    ],
)
def test_a_compile_ends_with_its_status(
    outcomes: dict[Candidate, Outcome], fault: str, status: Status, message: str
) -> None:
    outcome = outcomes[candidate(compile=fault)]
    assert (outcome.status, outcome.message) == (status, message)
    ended = ("fine", "gate", "print", "raise", "huge", "huge_for_all", "killed_once", "nothing", "starved", "twin")
    assert (outcome.compile_seconds is not None) == (fault in ended)
    shared = {"huge": 10**6}.get(fault, 1024 if status is Status.OK else None)
    assert replace(outcome.resources, binary=None) == Resources(shared_bytes=shared)
    assert (outcome.resources.binary is not None) == (fault == "twin")


def test_every_fault_was_tried(outcomes: dict[Candidate, Outcome]) -> None:
    assert outcomes.keys() == {candidate(compile=fault) for fault in BELIEVED}


@pytest.fixture
def pool(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompilePool]:
    monkeypatch.setenv(GATE, str(tmp_path / "gate"))  # closed until touched
    pool = CompilePool(NVIDIA_H200, jobs=2, timeout=PATIENCE_SECONDS)
    yield pool
    pool.close()
    pool.close()


@pytest.mark.slow
def test_another_problem_ends_what_was_compiling(pool: CompilePool, processes: Processes) -> None:
    pool.open(OPERATION, SHAPE)
    assert pool.receive(0.0) is None
    for fault in ("grandchild", "hang", "fine"):
        pool.submit(candidate(compile=fault))
    processes.wait_for(4)  # the server, two compilers and what one of them started; "fine" waits
    pool.open(OPERATION, SHAPE)
    pool.submit(candidate(compile="huge"))
    assert receive(pool).candidate == candidate(compile="huge")
    assert pool.receive(0.0) is None
    processes.wait_for(1)


@pytest.mark.slow
def test_an_answer_to_the_last_problem_is_dropped(pool: CompilePool, processes: Processes, tmp_path: Path) -> None:
    pool.open(OPERATION, SHAPE)
    pool.submit(candidate())
    assert select.select([pool], [], [], PATIENCE_SECONDS)[0]  # the answer waits
    pool.open(OPERATION, SHAPE)
    pool.submit(candidate(compile="gate"))
    (compiler,) = processes.wait_for(2) - {pool._child.pid}
    os.kill(pool._child.pid, signal.SIGSTOP)  # so that it will find both events at once
    pool.open(OPERATION, SHAPE)
    (tmp_path / "gate").touch()
    processes.wait_until(lambda living: compiler not in living)
    os.kill(pool._child.pid, signal.SIGCONT)
    pool.submit(candidate(compile="raise"))
    assert receive(pool).candidate == candidate(compile="raise")


def test_stopping_ends_what_was_compiling_and_the_problem_stays_open(pool: CompilePool, processes: Processes) -> None:
    pool.open(OPERATION, SHAPE)
    for fault in ("fine", "grandchild", "hang", "raise"):
        pool.submit(candidate(compile=fault))
    processes.wait_for(4)
    pool.stop()
    processes.wait_for(1)
    pool.submit(candidate(compile="huge"))
    assert receive(pool).candidate == candidate(compile="huge")
    assert pool.receive(0.0) is None


def test_stopping_all_but_some_leaves_their_compilers_alone(
    pool: CompilePool, processes: Processes, tmp_path: Path
) -> None:
    pool.open(OPERATION, SHAPE)
    pool.prepare(candidate(compile="gate"))
    for fault in ("hang", "grandchild"):
        pool.submit(candidate(compile=fault))
    before = processes.wait_for(3)  # the last one waits
    pool.stop_all_but([candidate(compile="gate")])
    assert processes.wait_for(2) < before
    pool.submit(candidate(compile="gate"), every_output=True)
    pool.submit(candidate(compile="huge"), every_output=True)
    (tmp_path / "gate").touch()
    assert {receive(pool).candidate for _ in range(2)} == {candidate(compile="gate"), candidate(compile="huge")}
    assert pool.receive(0.0) is None


@pytest.mark.slow
def test_a_killed_compiler_is_tried_again_when_no_other_runs(
    pool: CompilePool, processes: Processes, tmp_path: Path
) -> None:
    pool.open(OPERATION, SHAPE)
    for fault in ("gate", "killed_once", "fine"):
        pool.submit(candidate(compile=fault))
    processes.wait_until(lambda _: (tmp_path / "gate.killed").exists())
    assert pool.receive(0.3) is None  # not even the one that waited: it must not run beside it
    (tmp_path / "gate").touch()
    assert [receive(pool) for _ in range(3)] == [
        Outcome(candidate=candidate(compile=fault), status=Status.OK, resources=Resources(1024), compile_seconds=ANY)
        for fault in ("gate", "killed_once", "fine")
    ]


@pytest.mark.parametrize(
    ("wanted", "free_mib", "jobs", "reason"),
    [
        (None, 64_000, 3, "4 cores"),
        (None, 1_100, 2, "1100 MiB of free memory at 500 MiB a compiler"),
        (None, 10, 1, "10 MiB of free memory at 500 MiB a compiler"),
        (None, None, 3, "4 cores"),
        (2, 64_000, 2, "jobs=2"),
        (50, 64_000, 50, "jobs=50"),
        (50, 5_000, 10, "5000 MiB of free memory at 500 MiB a compiler"),
    ],
)
def test_jobs_are_limited_by_cores_and_by_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int | None, free_mib: int | None, jobs: int, reason: str
) -> None:
    meminfo = tmp_path / "meminfo"
    if free_mib is not None:
        meminfo.write_text(f"MemTotal: 1 kB\nMemFree: 2 kB\nMemAvailable:  {free_mib * 1024} kB\nBuffers: 3 kB\n")
    monkeypatch.setattr(compile_pool, "MEMORY_FILE", meminfo)
    monkeypatch.setattr(compile_pool, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    assert limit_jobs(wanted) == Jobs(jobs, reason)
    if wanted is None and jobs == 3:
        assert limit_jobs(None, spare=2) == Jobs(2, reason)  # of two GPUs


@pytest.mark.parametrize(
    ("wanted", "cpu", "limit_mib", "jobs", "reason"),
    [
        (None, "max 100000", "max", 7, "8 cores"),
        (None, "350000 100000", "max", 2, "3 cores of the cgroup"),
        (None, "50000 100000", "max", 1, "1 cores of the cgroup"),
        (None, "1600000 100000", "max", 7, "8 cores"),
        (None, "350000 100000", 4000, 2, "3 cores of the cgroup"),
        (None, "max 100000", 4000, 6, "3100 MiB of free memory of the cgroup at 500 MiB a compiler"),
        (None, "max 100000", 64_000, 7, "8 cores"),
        (20, "350000 100000", 64_000, 16, "8000 MiB of free memory at 500 MiB a compiler"),
        (4, "350000 100000", "max", 4, "jobs=4"),
    ],
)
def test_jobs_are_limited_by_the_cgroup(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: int | None,
    cpu: str,
    limit_mib: int | str,
    jobs: int,
    reason: str,
) -> None:
    limit = limit_mib * 2**20 if isinstance(limit_mib, int) else limit_mib
    files = {"cpu.max": cpu, "memory.max": limit, "memory.current": 1000 * 2**20}
    files["memory.stat"] = f"file {200 * 2**20}\ninactive_file {100 * 2**20}\n"
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "meminfo").write_text(f"MemAvailable: {8000 * 1024} kB\n")
    monkeypatch.setattr(compile_pool, "MEMORY_FILE", tmp_path / "meminfo")
    monkeypatch.setattr(compile_pool, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert limit_jobs(wanted) == Jobs(jobs, reason)


@pytest.mark.slow
def test_closing_ends_compilers_and_what_they_started(pool: CompilePool, processes: Processes) -> None:
    pool.open(OPERATION, SHAPE)
    for fault in ("grandchild", "hang"):
        pool.submit(candidate(compile=fault))
    processes.wait_for(4)
    pool.close()
    processes.wait_for(0)


@pytest.mark.slow
def test_a_kernel_that_cannot_be_imported_is_told(pool: CompilePool) -> None:
    pool.open(OPERATION, SHAPE)
    pool.submit(candidate("unloadable"))
    with pytest.raises(MissingDependencyError, match=r"cannot compile kernels: unloadable: .*NO_SUCH_KERNEL"):
        pool.receive(PATIENCE_SECONDS)
    assert pool.in_flight == 0


@pytest.mark.slow
def test_a_server_that_was_killed_is_replaced_and_compiles_again(pool: CompilePool, tmp_path: Path) -> None:
    pool.open(OPERATION, SHAPE)
    for fault in ("gate", "huge_for_all"):
        pool.submit(candidate(compile=fault), every_output=True)
    os.kill(pool._child.pid, signal.SIGKILL)
    (tmp_path / "gate").touch()
    found = {outcome.candidate: outcome.status for outcome in (receive(pool), receive(pool))}
    assert found == {
        candidate(compile="gate"): Status.OK,
        candidate(compile="huge_for_all"): Status.OUT_OF_RESOURCES,
    }


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_the_machines(pool: CompilePool) -> None:
    pool.open(OPERATION, SHAPE)
    pool.submit(candidate(compile="unwritable"))
    with pytest.raises(MissingDependencyError, match=r"cannot compile kernels: PermissionError: .*nowhere"):
        pool.receive(PATIENCE_SECONDS)


@pytest.mark.slow
def test_what_is_prepared_has_no_outcome_and_takes_none_away(pool: CompilePool, tmp_path: Path) -> None:
    pool.open(OPERATION, SHAPE)
    pool.submit(candidate(compile="gate"))
    for each in (candidate(compile="gate"), candidate(compile="huge_for_all"), candidate(compile="huge_for_all")):
        pool.prepare(each)  # the first is in flight, the last is prepared already
    assert (pool.in_flight, pool.is_awaited, pool.spare_jobs) == (1, True, 0)
    (tmp_path / "gate").touch()
    assert receive(pool).candidate == candidate(compile="gate")
    while pool.is_awaited:
        assert pool.receive(1.0) is None
    assert (pool.in_flight, pool.is_awaited, pool.spare_jobs) == (0, False, 2)
    pool.submit(candidate(compile="huge_for_all"), every_output=True)
    assert receive(pool).status is Status.OUT_OF_RESOURCES


@pytest.mark.slow
def test_a_server_that_dies_of_what_is_prepared_is_not_awaited(pool: CompilePool) -> None:
    pool.open(OPERATION, SHAPE)
    pool.prepare(candidate(compile="gate"))
    os.kill(pool._child.pid, signal.SIGKILL)
    assert pool.receive(PATIENCE_SECONDS) is None
    assert not pool.is_awaited
    pool.submit(candidate())
    assert receive(pool).status is Status.OK


# The real kernel and the real compiler


def _attention_candidate(**values: int) -> Candidate:
    small: dict[str, int | str] = {"BLOCK_Q": 16, "BLOCK_K": 16, "num_warps": 1, "num_stages": 2, "loads": "pointer"}
    config = Config({**small, **dict.fromkeys(("waves_per_eu", "matrix_instr_nonkdim", "kpack")), **values})
    return Candidate("triton", config)


@pytest.mark.slow
def test_real_configs_have_the_resources_of_the_target(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # compile, whatever is in the user's cache
    shape = AttentionShape(batch=1, heads=2, seq_q=1024, head_dim=128, causal=True)
    fits = _attention_candidate()
    too_large = _attention_candidate(BLOCK_K=128, num_stages=5, num_warps=4)
    pool = CompilePool(NVIDIA_H200, jobs=2, timeout=PATIENCE_SECONDS)
    pool.open(get_operation("flash_attention"), shape)
    for each in (fits, too_large):
        pool.submit(each)
    found = {outcome.candidate: outcome for outcome in (receive(pool), receive(pool))}
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
