"""The parent of a GPU survives its worker and its compile server: it replaces them, reopens the problem and goes on.

The worker is a fake that speaks the protocol, so that no GPU is needed; the compile server is the real one.
"""

import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import hardware
from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError, SearchError
from autotune.executor import BaselineResult, gpu, racing, worker_keeper
from autotune.executor.compile_pool import CompilePool, Jobs
from autotune.executor.gpu import GpuExecutor
from autotune.executor.worker_keeper import LOST
from autotune.search import Limits, search
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Outcome, Resources, Stage, Status
from tests.executor.conftest import fake_gpu
from tests.executor.fake_worker import TROUBLE, timing
from tests.executor.faulty import OPERATION, SHAPE, UNLOADABLE, config
from tests.executor.processes import Processes, watch

TIMING = timing(config())
FINE = Outcome(config=config(), status=Status.OK, timing=TIMING, resources=Resources(shared_bytes=1024))
PATIENCE = {"jobs": 2, "screen_seconds": 2.0, "compile_seconds": 20.0}


def start(**changes: Any) -> GpuExecutor:
    return GpuExecutor(**{**PATIENCE, **changes})


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[GpuExecutor, Processes]]:
    """One executor for all faults in turn: that it goes on is what is tested."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        fake_gpu(monkeypatch)
        watched = watch(monkeypatch)
        processes = next(watched)
        executor = start()
        yield executor, processes
        executor.close()
        executor.close()
        next(watched, None)


@pytest.fixture
def executor(shared: tuple[GpuExecutor, Processes]) -> GpuExecutor:
    shared[0].open(OPERATION, SHAPE)
    return shared[0]


@pytest.fixture
def own(shared: tuple[GpuExecutor, Processes]) -> Processes:
    """The processes of the shared executor."""
    return shared[1]


def collect(executor: GpuExecutor) -> Outcome:
    outcome = executor.collect()
    assert outcome is not None
    return outcome


def answer(executor: GpuExecutor, wanted: Config) -> Outcome:
    executor.submit(wanted)
    return collect(executor)


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
    assert executor.worker.endswith(f":{executor._workers.pid}")
    assert executor.capacity == 3


@pytest.mark.parametrize(
    ("run", "status", "message"),
    [
        ("fine", Status.OK, ""),
        ("print", Status.OK, ""),
        ("split", Status.OK, ""),
        ("wrong", Status.WRONG_RESULT, "off by one"),
        ("nan", Status.NAN_RESULT, "1 of 1 elements are NaN"),
        ("illegal", Status.ILLEGAL_ACCESS, "an illegal memory access"),
        ("trap", Status.ILLEGAL_ACCESS, "unspecified launch failure"),
        ("die", Status.WORKER_DIED, "exit status 9: last words"),
        ("killed", Status.WORKER_DIED, "exit status -9"),
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
    assert (executor.worker != before) == (status in LOST)


def test_a_config_that_does_not_compile_never_reaches_the_worker(executor: GpuExecutor) -> None:
    outcome = answer(executor, config(compile="raise", run="die"))
    assert outcome.status is Status.COMPILE_ERROR
    assert_works(executor)


def test_many_in_flight_end_once_each(executor: GpuExecutor) -> None:
    wanted = [config(compile=c, run=r) for c in ("fine", "huge") for r in ("fine", "die")]
    for each in wanted:
        executor.submit(each)
    found = {outcome.config: outcome.status for outcome in (collect(executor) for _ in wanted)}
    assert found == {
        config(): Status.OK,
        config(run="die"): Status.WORKER_DIED,
        config(compile="huge"): Status.OUT_OF_RESOURCES,
        config(compile="huge", run="die"): Status.OUT_OF_RESOURCES,
    }


def test_a_worker_that_died_while_idle_is_nobodys_fault(executor: GpuExecutor) -> None:
    def die_idle() -> None:
        assert answer(executor, config(run="die_idle")).status is Status.OK
        os.waitid(os.P_PID, executor._workers.pid, os.WEXITED | os.WNOWAIT)

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
        ("race_hang", Status.HANG, "the race stood still for 2 s"),
        ("race_illegal", Status.ILLEGAL_ACCESS, "race_illegal"),
        ("race_raise", Status.LAUNCH_ERROR, "race_raise"),
    ],
)
def test_a_race_goes_on_without_the_one_that_ended_it(
    executor: GpuExecutor, run: str, status: Status, message: str
) -> None:
    guilty = [config(run=run), config(run=run, extra_us=1)]
    fine = [config(extra_us=extra_us) for extra_us in range(2)]
    race = executor.race([fine[0], guilty[0], fine[1], guilty[1]], seconds=0.1)
    assert [(o.config, o.status, o.message, o.timing) for o in race.outcomes] == [
        (fine[0], Status.OK, "", timing(fine[0])),
        (guilty[0], status, message, None),
        (fine[1], Status.OK, "", timing(fine[1])),
        (guilty[1], status, message, None),
    ]
    assert race.fastest_baseline.name == "sdpa_flash"
    assert_works(executor)


def test_a_race_of_none_but_the_guilty_ends(executor: GpuExecutor) -> None:
    race = executor.race([config(run="race_die"), config(run="race_raise")], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.WORKER_DIED, Status.LAUNCH_ERROR]
    assert race.baselines == ()
    assert_works(executor)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("baseline_die", "exit status 9"),
        ("baseline_hang", "the race stood still for 1 s"),
        ("baseline_raise", "refused"),
    ],
)
def test_a_broken_baseline_is_no_finalists_fault(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch, run: str, message: str
) -> None:
    monkeypatch.setattr(racing, "BASELINE_SECONDS", 1.0)
    race = executor.race([config(), config(run=run)], seconds=5.0)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK, Status.OK]
    kept = BaselineResult("sdpa_math", timing(config()))
    assert race.baselines == (kept, BaselineResult("sdpa_flash", message=message))
    assert_works(executor)


def test_a_race_that_ends_at_nobodys_turn_is_tried_again_and_nobodys_fault(executor: GpuExecutor) -> None:
    race = executor.race([config(), config(run="race_void_once")], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK, Status.OK]
    assert race.baselines == ()
    with pytest.raises(SearchError, match="the race failed while no finalist ran: worker_died: exit status 9"):
        executor.race([config(), config(run="race_void")], seconds=0.1)
    assert_works(executor)


def test_a_race_that_never_ends_is_ended(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "MARGIN_SECONDS", 0.3)
    race = executor.race([config(run="race_hang"), config()], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.HANG, Status.OK]
    assert_works(executor)


def test_a_finalist_that_is_within_its_patience_does_not_hang(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(racing, "MARGIN_SECONDS", 0.3)  # others took the time
    race = executor.race([config(), config(run="race_slow")], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK, Status.OK]
    assert_works(executor)


def test_a_full_shape_that_does_not_fit_is_nobodys_fault(executor: GpuExecutor) -> None:
    with pytest.raises(SearchError, match="faulty cannot be made on this GPU: the full shape does not fit; free its"):
        executor.race([config(run="race_unopened")], seconds=0.1)
    assert_works(executor)


def leave_screening(executor: GpuExecutor, wanted: Config) -> None:
    executor._workers.await_ready()
    executor._screen(Outcome(config=wanted, status=Status.OK))


@pytest.mark.parametrize("run", ["fine", "hang", "die"])
def test_what_nobody_collected_does_not_disturb_the_next(executor: GpuExecutor, run: str) -> None:
    """A deadline passed, or Ctrl-C; what hangs is not waited for until its time is up."""
    leave_screening(executor, config(run=run))
    race = executor.race([config()], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK]
    executor.submit(config(run=run))
    leave_screening(executor, config(run=run))
    executor.open(OPERATION, SHAPE)
    assert_works(executor)


def test_a_race_ends_what_is_compiling(executor: GpuExecutor, own: Processes) -> None:
    idle = own.living()
    for fault in ("grandchild", "hang", "fine"):
        executor.submit(config(compile=fault))
    own.wait_for(len(idle) + 3)  # two compilers, and what one of them started
    assert executor.race([config()], seconds=0.1).outcomes[0].status is Status.OK
    own.wait_for(len(idle))
    assert_works(executor)
    assert executor.collect(0.1) is None


def test_collecting_takes_no_longer_than_asked(executor: GpuExecutor, tmp_path: Path) -> None:
    assert_works(executor)
    executor.submit(config(compile="hang"))
    assert executor.collect(0.0) is None
    assert executor.collect(0.2) is None
    executor.open(OPERATION, SHAPE)
    executor.submit(config(run="hang"))
    while executor._screening is None:
        assert executor.collect(0.05) is None
    assert executor.collect(0.2) is None
    assert (collect(executor).status, executor.collect(0.0)) == (Status.HANG, None)  # it was still in flight


def test_a_worker_that_is_ready_between_two_looks_is_not_waited_for(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its one message arrives after ``collect`` looked: who looks again takes it, and waits for another for ever."""
    is_ready, looks = executor._workers.is_ready, []

    def look(timeout: float) -> bool:
        looks.append(timeout)
        if len(looks) > 1:
            return is_ready(timeout)
        select.select([executor._workers], [], [], 20.0)
        return False

    monkeypatch.setattr(executor._workers, "is_ready", look)
    executor._compiled.append(Outcome(config=config(), status=Status.OK))
    outcome = executor.collect(20.0)
    assert outcome is not None
    assert outcome.timing == TIMING


def test_one_binary_is_judged_once(executor: GpuExecutor) -> None:
    def twin(run: str = "fine", **options: int) -> Config:
        return config(compile="twin", run=run, **options)

    first = answer(executor, twin(num_warps=4, extra_us=7))
    second = answer(executor, twin(num_warps=8, extra_us=7))
    assert (second.config, second.status, second.timing) == (twin(num_warps=8, extra_us=7), Status.OK, first.timing)
    assert second.message == f"same binary as {first.config}"
    assert (second.resources, second.judge_seconds) == (first.resources, 0.0)
    assert second.compile_seconds not in (None, first.compile_seconds)
    other_grid = answer(executor, twin(num_warps=8, extra_us=6))
    assert (other_grid.message, other_grid.timing) == ("", timing(other_grid.config))
    assert answer(executor, twin(num_warps=4, extra_us=7)).message == ""  # asked again, measured again
    wrong = [answer(executor, twin("wrong", num_stages=stages)) for stages in (1, 2)]
    assert wrong[1].message == f"same binary as {wrong[0].config}: off by one"
    assert (wrong[1].status, wrong[1].error) == (Status.WRONG_RESULT, 1.0)
    for run, status in (("die", Status.WORKER_DIED), ("illegal", Status.ILLEGAL_ACCESS)):
        lost = [answer(executor, twin(run, num_stages=stages)) for stages in (1, 2)]
        assert [outcome.status for outcome in lost] == [status, status]
        assert "same binary" not in lost[1].message
    executor.open(OPERATION, SHAPE)
    assert answer(executor, twin(num_warps=8, extra_us=7)).message == ""


def test_a_standby_takes_over_and_another_stands_by(executor: GpuExecutor, own: Processes) -> None:
    assert_works(executor)
    standby = executor._workers._standby.pid
    assert answer(executor, config(run="die")).status is Status.WORKER_DIED
    assert_works(executor)
    assert executor._workers.pid == standby
    assert {standby, executor._workers._standby.pid} <= own.living()
    assert executor._workers._standby.pid != standby


def test_a_standby_that_died_is_replaced_by_a_fresh_start(executor: GpuExecutor) -> None:
    assert_works(executor)
    standby = executor._workers._standby.pid
    os.kill(standby, signal.SIGKILL)
    os.waitid(os.P_PID, standby, os.WEXITED | os.WNOWAIT)
    assert answer(executor, config(run="die")).status is Status.WORKER_DIED
    assert_works(executor)
    assert executor._workers.pid != standby


def test_an_interrupted_race_is_not_answered_later(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(timeout: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(executor._workers, "receive", interrupt)
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
        found = {outcome.config: outcome.status for outcome in (collect(executor), collect(executor))}
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
    monkeypatch.setattr(executor, "_pool_deadline", time.monotonic() + 0.2)
    assert collect(executor).status is Status.OUT_OF_RESOURCES
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


# An executor of its own


@pytest.fixture
def watched(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> Processes:
    fake_gpu(monkeypatch)
    return processes


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
    watched: Processes, trouble: Path, monkeypatch: pytest.MonkeyPatch, word: str, message: str
) -> None:
    trouble.write_text(word)
    monkeypatch.setattr(worker_keeper, "START_SECONDS", 1.0)
    with pytest.raises(MissingDependencyError) as caught:
        start()
    assert str(caught.value) == message
    watched.wait_for(0)


def test_the_config_that_lost_the_gpu_is_known_before_the_error(watched: Processes, trouble: Path) -> None:
    executor = start()
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
    watched: Processes, trouble: Path, monkeypatch: pytest.MonkeyPatch, word: str, message: str
) -> None:
    monkeypatch.setattr(worker_keeper, "OPEN_SECONDS", 1.0)
    executor = start()
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


def test_a_worker_that_died_once_while_opening_is_forgiven(watched: Processes) -> None:
    executor = start()
    executor.open(OPERATION, SHAPE)
    os.kill(executor._workers.pid, signal.SIGKILL)
    assert_works(executor)
    executor.close()


def test_a_worker_that_died_once_while_starting_is_forgiven(watched: Processes, trouble: Path) -> None:
    executor = start()
    executor.open(OPERATION, SHAPE)
    for _ in range(2):
        trouble.write_text("die once")
        assert answer(executor, config(run="die")).status is Status.WORKER_DIED
        assert_works(executor)
        assert not trouble.exists()
    executor.close()


def test_the_limit_of_compilers_is_told(watched: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "limit_jobs", lambda wanted: Jobs(1, "900 MiB of free memory"))
    executor = start()
    assert (executor.jobs.reason, executor.capacity) == ("900 MiB of free memory", 2)
    executor.close()


def test_a_compile_server_that_dies_of_its_problem_is_given_up(
    watched: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "MAX_POOL_DEATHS", 1)
    executor = start()
    executor.open(UNLOADABLE, SHAPE)
    executor.submit(config())
    with pytest.raises(MissingDependencyError, match=r"compilers do not work: exit status 1: .*NO_SUCH_KERNEL"):
        executor.collect()
    executor.close()
