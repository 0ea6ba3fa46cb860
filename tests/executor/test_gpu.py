"""The parent of a GPU survives its worker and its compile server: it replaces them, reopens the problem and goes on.

The worker is a fake that speaks the protocol, so that no GPU is needed; the compile server is the real one.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import hardware
from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError
from autotune.executor import gpu
from autotune.executor.child import Child
from autotune.executor.compile_pool import COMPILE_SECONDS, CompilePool
from autotune.executor.gpu import GpuExecutor
from autotune.search import Limits, search
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Outcome, Resources, Stage, Status
from tests.executor.fake_worker import START, TIMING
from tests.executor.faulty import OPERATION, SHAPE, UNLOADABLE, config
from tests.executor.processes import Processes, watch

FINE = Outcome(config=config(), status=Status.OK, timing=TIMING, resources=Resources(shared_bytes=1024))


def start_fake(module: str, *arguments: str) -> Child:
    return Child({"autotune.executor.worker": "tests.executor.fake_worker"}[module], *arguments)


def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on there is a GPU, and patience is short."""
    monkeypatch.setattr(hardware, "has_gpu", lambda: True)
    monkeypatch.setattr(gpu, "Child", start_fake)
    monkeypatch.setattr(gpu, "SCREEN_SECONDS", 2.0)
    monkeypatch.setattr(gpu, "RACE_MARGIN_SECONDS", 0.5)


@pytest.fixture(scope="module")
def shared() -> Iterator[GpuExecutor]:
    """One executor for all faults in turn: that it goes on is what is tested."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        fake_gpu(monkeypatch)
        watched = watch(monkeypatch)
        next(watched)
        executor = GpuExecutor(jobs=2)
        yield executor
        executor.close()
        executor.close()
        next(watched, None)


@pytest.fixture
def executor(shared: GpuExecutor) -> GpuExecutor:
    shared.open(OPERATION, SHAPE)
    return shared


def answer(executor: GpuExecutor, wanted: Config) -> Outcome:
    executor.submit(wanted)
    return executor.collect()


def assert_works(executor: GpuExecutor) -> None:
    """A good config is measured, and a race ends; the fake worker refuses both until a problem is opened."""
    outcome = answer(executor, config())
    assert outcome.compile_seconds is not None
    assert (outcome.config, outcome.status, outcome.timing, outcome.resources) == (
        *(FINE.config, FINE.status, FINE.timing, FINE.resources),
    )
    race = executor.race([config()], seconds=0.1)
    assert [raced.timing for raced in race.outcomes] == [TIMING]
    assert race.fastest_baseline.name == "sdpa_flash"


def test_it_says_who_measures_and_where(executor: GpuExecutor) -> None:
    assert (executor.name, executor.device, executor.toolchain.triton) == ("gpu", NVIDIA_H200, "3.6.0")
    assert executor.worker.endswith(f":{executor._worker.pid}")
    assert executor.capacity == 4


@pytest.mark.parametrize(
    ("run", "status", "message"),
    [
        ("fine", Status.OK, ""),
        ("print", Status.OK, ""),
        ("split", Status.OK, ""),
        ("wrong", Status.WRONG_RESULT, "off by one"),
        ("illegal", Status.ILLEGAL_ACCESS, "an illegal memory access"),
        ("die", Status.WORKER_DIED, "exit status 9: last words"),
        ("hang", Status.HANG, "no answer within 2 s"),
    ],
)
def test_a_screening_ends_with_its_status(executor: GpuExecutor, run: str, status: Status, message: str) -> None:
    before = executor.worker
    outcome = answer(executor, config(run=run))
    assert (outcome.config, outcome.status, outcome.message) == (config(run=run), status, message)
    assert outcome.resources == FINE.resources  # of its compile
    assert outcome.compile_seconds is not None
    assert executor.worker == before  # who measured it
    assert_works(executor)
    assert (executor.worker != before) == (run in ("illegal", "die", "hang"))


def test_a_config_that_does_not_compile_never_reaches_the_worker(executor: GpuExecutor) -> None:
    outcome = answer(executor, config(compile="raise", run="die"))
    assert outcome.status is Status.COMPILE_ERROR
    assert_works(executor)


def test_many_in_flight_end_once_each(executor: GpuExecutor) -> None:
    wanted = [config(compile=c, run=r) for c in ("fine", "huge") for r in ("fine", "die")]
    for each in wanted:
        executor.submit(each)
    found = {outcome.config: outcome.status for outcome in (executor.collect() for _ in wanted)}
    assert found == {
        config(): Status.OK,
        config(run="die"): Status.WORKER_DIED,
        config(compile="huge"): Status.OUT_OF_RESOURCES,
        config(compile="huge", run="die"): Status.OUT_OF_RESOURCES,
    }


def test_a_worker_that_died_while_idle_is_nobodys_fault(executor: GpuExecutor) -> None:
    def die_idle() -> None:
        assert answer(executor, config(run="die_idle")).status is Status.OK
        os.waitid(os.P_PID, executor._worker.pid, os.WEXITED | os.WNOWAIT)

    die_idle()
    assert_works(executor)
    die_idle()
    assert executor.race([config()], seconds=0.1).outcomes[0].status is Status.OK
    die_idle()
    executor.open(OPERATION, SHAPE)
    assert_works(executor)


@pytest.mark.parametrize(
    ("run", "status", "message"),
    [
        ("race_die", Status.WORKER_DIED, "exit status 9"),
        ("race_hang", Status.HANG, "the race did not end within 1 s"),
        ("race_illegal", Status.ILLEGAL_ACCESS, "race_illegal"),
        ("race_raise", Status.LAUNCH_ERROR, "race_raise"),
    ],
)
def test_a_race_that_fails_gives_every_finalist_the_reason(
    executor: GpuExecutor, run: str, status: Status, message: str
) -> None:
    race = executor.race([config(), config(run=run)], seconds=0.1)
    assert [(o.config, o.status, o.message, o.timing) for o in race.outcomes] == [
        (config(), status, message, None),
        (config(run=run), status, message, None),
    ]
    assert race.baselines == ()
    assert_works(executor)


@pytest.mark.parametrize("run", ["fine", "hang", "die"])
def test_what_nobody_collected_does_not_disturb_the_next(executor: GpuExecutor, run: str) -> None:
    executor._screen(Outcome(config=config(run=run), status=Status.OK))  # a deadline passed, or Ctrl-C
    race = executor.race([config()], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK]
    executor.submit(config(run=run))
    executor._screen(Outcome(config=config(run=run), status=Status.OK))
    executor.open(OPERATION, SHAPE)
    assert_works(executor)


def test_an_interrupted_race_is_not_answered_later(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(timeout: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(executor._worker, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            executor.race([config()], seconds=0.1)
    executor.open(OPERATION, SHAPE)
    assert_works(executor)


def test_a_dead_compile_server_is_replaced_with_what_it_had(executor: GpuExecutor) -> None:
    for when in ("before open", "before submit", "while compiling"):
        if when == "before open":
            os.kill(executor._pool._child.pid, signal.SIGKILL)
        executor.open(OPERATION, SHAPE)
        if when == "before submit":
            os.kill(executor._pool._child.pid, signal.SIGKILL)
        executor.submit(config())
        executor.submit(config(compile="huge"))
        if when == "while compiling":
            os.kill(executor._pool._child.pid, signal.SIGKILL)
        found = {outcome.config: outcome.status for outcome in (executor.collect(), executor.collect())}
        assert found == {config(): Status.OK, config(compile="huge"): Status.OUT_OF_RESOURCES}


def test_a_silent_compile_server_is_replaced(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_works(executor)
    os.kill(executor._pool._child.pid, signal.SIGSTOP)
    executor.submit(config(compile="huge"))
    start_pool, started = executor._start_pool, []

    def start_with_patience() -> CompilePool:
        monkeypatch.undo()
        started.append(start_pool())
        return started[0]

    monkeypatch.setattr(executor, "_start_pool", start_with_patience)
    monkeypatch.setattr(gpu, "START_SECONDS", 0.2 - COMPILE_SECONDS)
    assert executor.collect().status is Status.OUT_OF_RESOURCES
    assert started == [executor._pool]


def test_a_search_records_every_fault_and_finds_the_winner(executor: GpuExecutor, tmp_path: Path) -> None:
    runs = ("fine", "wrong", "illegal", "die")
    compiles = ("fine", "raise", "huge", "exit")
    wanted = {config(compile=c, run=r) for c in compiles for r in runs if "fine" in (c, r)}
    store = Store(tmp_path)
    result = search(_only(wanted), SHAPE, executor, store, limits=Limits(), sampler="exhaustive")
    assert result.winner is not None
    assert result.winner.config == config()
    assert result.winner.baseline == "sdpa_flash"
    assert {t.config for t in store.trials(OPERATION.name) if t.stage is Stage.SCREEN} == wanted
    assert result.statuses == {
        Status.OK: 1,
        Status.WRONG_RESULT: 1,
        Status.ILLEGAL_ACCESS: 1,
        Status.WORKER_DIED: 1,
        Status.COMPILE_ERROR: 2,
        Status.OUT_OF_RESOURCES: 1,
    }


def _only(configs: set[Config]) -> Any:
    space = replace(OPERATION.space, reject=lambda config, shape, device: None if config in configs else "not wanted")
    return replace(OPERATION, space=space)


# Without a GPU


@pytest.fixture
def watched(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> Processes:
    fake_gpu(monkeypatch)
    return processes


def test_no_gpu_is_an_error_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    with pytest.raises(MissingDependencyError, match="no GPU is visible"):
        GpuExecutor()


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("die", "the GPU cannot be opened: exit status 1: the driver is gone; run `autotune doctor`"),
        ("hang", "the GPU did not open within 1 s; run `autotune doctor`"),
    ],
)
def test_a_gpu_that_does_not_open_is_an_error(
    watched: Processes, monkeypatch: pytest.MonkeyPatch, start: str, message: str
) -> None:
    monkeypatch.setenv(START, start)
    monkeypatch.setattr(gpu, "START_SECONDS", 1.0)
    with pytest.raises(MissingDependencyError) as caught:
        GpuExecutor()
    assert str(caught.value) == message
    watched.wait_for(0)


def test_the_config_that_lost_the_gpu_is_known_before_the_error(
    watched: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = GpuExecutor(jobs=1)
    executor.open(OPERATION, SHAPE)
    monkeypatch.setenv(START, "die")
    assert answer(executor, config(run="die")).status is Status.WORKER_DIED
    for _ in range(2):
        with pytest.raises(MissingDependencyError, match="the driver is gone"):
            answer(executor, config())
        executor.open(OPERATION, SHAPE)
    monkeypatch.delenv(START)
    assert_works(executor)
    executor.close()


def test_a_compile_server_that_dies_of_its_problem_is_given_up(
    watched: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "MAX_POOL_DEATHS", 1)
    executor = GpuExecutor(jobs=1)
    executor.open(UNLOADABLE, SHAPE)
    executor.submit(config())
    with pytest.raises(MissingDependencyError, match=r"compilers do not work: exit status 1: .*NO_SUCH_KERNEL"):
        executor.collect()
    executor.close()
