"""Several GPUs of one host, whose workers are fake: which may search together, and one that screens for another."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.errors import AutotuneError, MissingDependencyError, UnusableGpuError, UsageError
from autotune.executor import DisturbedRaceError
from autotune.executor.gpu import GpuExecutor
from autotune.executor.gpu_health import GpuHealth
from autotune.executor.settings import GpuNames, Settings
from autotune.executor.several_gpus import SeveralGpus, read_gpus
from autotune.trial import Conditions, Status
from tests.executor.driving import replace_two_gpus
from tests.executor.faulty import OPERATION, SHAPE, candidate
from tests.executor.processes import Processes

SETTINGS = Settings(jobs=2, screen_seconds=20.0)


@pytest.fixture(autouse=True)
def trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """Two GPUs; writes what is wrong with one of them."""
    return replace_two_gpus(monkeypatch, tmp_path, meet=True)


@pytest.fixture
def gpus(processes: Processes) -> Iterator[SeveralGpus]:
    with closing(SeveralGpus(SETTINGS, "all")) as gpus:
        yield gpus


@pytest.mark.parametrize(("named", "found"), [("all", (0, 1)), ([1], (1,)), ((1, 0, 1), (1, 0))])
def test_gpus_are_named(named: GpuNames, found: tuple[int, ...]) -> None:
    assert read_gpus(named) == found


@pytest.mark.parametrize("named", ["some", "0,1", (), [0, "1"], [True], 1, [-1], [2], None])
def test_gpus_that_are_not_here_are_refused(named: Any) -> None:
    with pytest.raises(UsageError, match=r"gpus=.*expected 'all', or a list of indices as torch counts them"):
        read_gpus(named)


def test_without_a_gpu_none_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "gpu_count", lambda: 0)
    with pytest.raises(MissingDependencyError, match="no GPU is visible"):
        read_gpus("all")


def test_an_index_beside_several_is_refused() -> None:
    with pytest.raises(UsageError, match=r"settings\.index=1 is not allowed beside gpus='all'"):
        SeveralGpus(Settings(index=1), "all")


def test_gpus_of_two_kinds_do_not_search_together(processes: Processes, trouble: Callable[[int, str], None]) -> None:
    trouble(1, "other kind")
    with pytest.raises(UsageError, match=r"2 kinds, .* \(NVIDIA H200 at 700 W: 0; NVIDIA H200 at 500 W: 1\)"):
        SeveralGpus(SETTINGS, "all")
    processes.wait_for(0)


def test_a_device_leaves_out_gpus_of_other_names(processes: Processes) -> None:
    with pytest.raises(UsageError, match="device='H100' is none of gpus='all'"):
        SeveralGpus(SETTINGS, "all", "H100")
    with closing(SeveralGpus(SETTINGS, "all", "H200")) as gpus:
        assert gpus.device == NVIDIA_H200
        assert list(gpus.executors) == [0, 1]


def test_a_gpu_that_cannot_be_opened_is_dropped(processes: Processes, trouble: Callable[[int, str], None]) -> None:
    trouble(0, "die")
    with closing(SeveralGpus(SETTINGS, "all")) as gpus:
        assert list(gpus.executors) == [1]
        unopened, other = gpus.uses()
        assert (unopened.index, other.index, other.dropped) == (0, 1, "")
        assert unopened.dropped.startswith("the GPU cannot be opened: exit status 1: the driver is gone")


def test_where_none_can_be_opened_all_reasons_are_told(
    processes: Processes, trouble: Callable[[int, str], None]
) -> None:
    for index in (0, 1):
        trouble(index, "die")
    with pytest.raises(MissingDependencyError, match=r"no GPU is left: GPU 0: the GPU cannot .*; GPU 1: the GPU"):
        SeveralGpus(SETTINGS, "all")


def lend(gpus: SeveralGpus) -> "tuple[GpuExecutor, SimpleQueue[AutotuneError | None]]":
    """The first GPU with a problem open, for which the second screens."""
    host, returned = gpus.executors[0], SimpleQueue[AutotuneError | None]()
    assert not host.screeners.lend(gpus.executors[1].screeners.own, returned.put)  # it screens nothing
    host.open(OPERATION, SHAPE)
    assert host.screeners.lend(gpus.executors[1].screeners.own, returned.put)
    return host, returned


def test_two_gpus_screen_for_one_search_and_one_races(gpus: SeveralGpus) -> None:
    host, returned = lend(gpus)
    meeting = [candidate(run="meet"), candidate(run="meet", extra_us=1)]
    for each in meeting:  # ends only where both GPUs are at it
        host.submit(each)
    workers = set()
    for _ in meeting:
        outcome = host.collect(60.0)
        assert outcome is not None
        assert outcome.status is Status.OK
        workers.add(host.worker)
    assert len(workers) == 2
    assert returned.empty()
    assert [each.status for each in host.race([candidate()], seconds=0.1).outcomes] == [Status.OK]
    assert returned.get_nowait() is None
    assert host.worker.endswith(f":{host._workers.pid}")
    assert (host.screeners.lent_count, host.screeners.lend(gpus.executors[1].screeners.own, returned.put)) == (0, False)
    own = gpus.executors[1]  # goes on with a search of its own
    own.open(OPERATION, SHAPE)
    own.submit(candidate())
    assert own.collect(60.0) is not None
    assert all(use.busy > 0.0 for use in gpus.uses())


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("shared", "another process used it"),
        pytest.param("hot", "slowed down (thermal)", marks=pytest.mark.slow),
    ],
)
def test_what_a_disturbed_gpu_screened_is_screened_by_the_other(
    gpus: SeveralGpus, trouble: Callable[[int, str], None], word: str, reason: str
) -> None:
    host, returned = lend(gpus)
    trouble(1, word)
    gpus.executors[1].screeners.own.health = health = GpuHealth()
    for _ in range(2):  # and once more
        assert health.judge(Conditions(contended=word == "shared", throttle_reasons="thermal")) == ""
    for each in (candidate(run="meet"), candidate(run="meet", extra_us=1)):
        host.submit(each)
    found = [host.collect(60.0) for _ in range(2)]
    assert [each and each.conditions for each in found] == [Conditions(throttle_reasons="power")] * 2
    error = returned.get(timeout=60.0)
    assert isinstance(error, UnusableGpuError)
    assert reason in str(error)


def test_a_gpu_is_judged_by_what_is_disturbed_in_a_row() -> None:
    shared, hot, fine = Conditions(contended=True), Conditions(throttle_reasons="hardware"), Conditions()
    health = GpuHealth()
    for each in (shared, shared, fine, shared, shared, hot, hot, Conditions(throttle_reasons="power"), hot, hot):
        assert health.judge(each) == ""
    assert health.judge(hot) == "it was slowed down (hardware) in 3 measurements in a row"


def test_the_last_gpu_is_never_dropped_for_its_times() -> None:
    health = GpuHealth(may_leave=lambda: False)
    assert [health.judge(Conditions(contended=True)) for _ in range(4)] == [""] * 4


def test_of_two_disturbed_gpus_one_stays(gpus: SeveralGpus) -> None:
    first, second = (each.screeners.own.health for each in gpus.executors.values())
    assert first is not None
    assert second is not None
    assert [bool(first.judge(Conditions(contended=True))) for _ in range(3)] == [False, False, True]
    gpus.drop(0, "another process used it")
    assert [second.judge(Conditions(contended=True)) for _ in range(4)] == [""] * 4


def test_the_only_gpu_is_not_judged(processes: Processes) -> None:
    with closing(SeveralGpus(SETTINGS, [1])) as gpus:
        assert gpus.executors[1].screeners.own.health is None


def test_a_race_that_is_disturbed_again_and_again_has_its_rows_in_the_error(
    gpus: SeveralGpus, trouble: Callable[[int, str], None]
) -> None:
    trouble(0, "shared")
    host = gpus.executors[0]
    host.open(OPERATION, SHAPE)
    for _ in range(2):
        host.race([candidate()], seconds=0.1)
    with pytest.raises(DisturbedRaceError, match="another process used it during 3 measurements in a row") as raised:
        host.race([candidate()], seconds=0.1)
    assert [each.conditions.contended for each in raised.value.race.outcomes] == [True]


SLOW_STAGES = [pytest.param(each, marks=pytest.mark.slow) for each in ("compiling", "race")]


@pytest.mark.parametrize("stage", ["screening", *SLOW_STAGES])
def test_an_interruption_ends_the_waiting_of_other_threads(gpus: SeveralGpus, stage: str) -> None:
    host, _ = lend(gpus)
    ends: SimpleQueue[BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            if stage == "race":
                host.race([candidate(run="race_hang")], seconds=0.1)
            host.submit(candidate(run="hang") if stage == "screening" else candidate(compile="hang"))
            host.collect()
        except BaseException as error:
            host.screeners.give_back_lent()
            ends.put(error)

    thread = threading.Thread(target=work)
    thread.start()
    gpus.interrupt()
    assert isinstance(ends.get(timeout=60.0), KeyboardInterrupt)
    thread.join()
