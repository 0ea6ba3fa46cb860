"""Every screened config ends once, with its own status, and a search over all faults finds the winner."""

import select
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError
from autotune.executor.gpu import GpuExecutor
from autotune.executor.worker_keeper import LOST
from autotune.search import Limits, search
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Candidate, Outcome, Stage, Status
from tests.executor.driving import RESOURCES, TIMING, answer, assert_works, collect
from tests.executor.fake_worker import timing
from tests.executor.faulty import OPERATION, OURS, SHAPE, candidate, config


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
        pytest.param("slow_cases", Status.OK, "", marks=pytest.mark.slow),  # 3 s, before the candidate's turn
    ],
)
def test_a_screening_ends_with_its_status(executor: GpuExecutor, run: str, status: Status, message: str) -> None:
    before = executor.worker
    outcome = answer(executor, candidate(run=run))
    assert (outcome.candidate, outcome.status, outcome.message) == (candidate(run=run), status, message)
    assert outcome.resources == RESOURCES  # of its compile
    assert outcome.compile_seconds is not None
    assert executor.worker == before  # who measured it
    assert_works(executor)
    assert (executor.worker != before) == (status in LOST)


def test_a_config_that_does_not_compile_never_reaches_the_worker(executor: GpuExecutor) -> None:
    outcome = answer(executor, candidate(compile="raise", run="die"))
    assert outcome.status is Status.COMPILE_ERROR
    assert_works(executor)


def test_many_in_flight_end_once_each(executor: GpuExecutor) -> None:
    wanted = [candidate(compile=c, run=r) for c in ("fine", "huge") for r in ("fine", "die")]
    for each in wanted:
        executor.submit(each)
    found = {outcome.candidate: outcome.status for outcome in (collect(executor) for _ in wanted)}
    assert found == {
        candidate(): Status.OK,
        candidate(run="die"): Status.WORKER_DIED,
        candidate(compile="huge"): Status.OUT_OF_RESOURCES,
        candidate(compile="huge", run="die"): Status.OUT_OF_RESOURCES,
    }


def leave_screening(executor: GpuExecutor, wanted: Candidate) -> None:
    executor._workers.await_ready()
    assert executor.screeners.own.ask(Outcome(candidate=wanted, status=Status.OK), early_stop=True, patience=2.0)


@pytest.mark.parametrize("run", ["fine", pytest.param("hang", marks=pytest.mark.slow), "die"])
def test_what_was_not_collected_does_not_disturb_the_next(executor: GpuExecutor, run: str) -> None:
    """A deadline passed, or Ctrl-C; what hangs is not waited for until its time is up."""
    leave_screening(executor, candidate(run=run))
    race = executor.race([candidate()], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK]
    executor.submit(candidate(run=run))
    leave_screening(executor, candidate(run=run))
    executor.open(OPERATION, SHAPE)
    assert_works(executor)


@pytest.mark.slow
def test_collecting_takes_no_longer_than_asked(executor: GpuExecutor) -> None:
    assert_works(executor)
    executor.submit(candidate(compile="hang"))
    assert executor.collect(0.0) is None
    assert executor.collect(0.2) is None
    executor.open(OPERATION, SHAPE)
    executor.submit(candidate(run="hang"))
    while executor.screeners.own.compiled is None:
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
    executor._compiled.append(Outcome(candidate=candidate(), status=Status.OK))
    outcome = executor.collect(20.0)
    assert outcome is not None
    assert outcome.timing == TIMING


def test_the_next_is_screened_while_the_caller_keeps_an_outcome(executor: GpuExecutor) -> None:
    runs = ("fine", "nan", "die", "wrong")
    executor._compiled += [Outcome(candidate=candidate(run=run), status=Status.OK) for run in runs]
    found = []
    for following in (*runs[1:3], None, None):  # one that died measures nothing ahead
        found.append(collect(executor).config["run"])
        ahead = executor.screeners.own.compiled
        assert (ahead and ahead.config["run"]) == following
    assert found == list(runs)
    assert_works(executor)


def test_one_binary_is_judged_once(executor: GpuExecutor) -> None:
    def twin(run: str = "fine", **options: int) -> Candidate:
        return Candidate("ours", config(compile="twin", run=run, **options))

    first = answer(executor, twin(num_warps=4, extra_us=7))
    second = answer(executor, twin(num_warps=8, extra_us=7))
    assert (second.candidate, second.status, second.timing) == (twin(num_warps=8, extra_us=7), Status.OK, first.timing)
    assert second.message == f"same binary as {first.config}"
    assert (second.resources, second.judge_seconds) == (first.resources, 0.0)
    assert second.compile_seconds not in (None, first.compile_seconds)
    other_implementation = answer(executor, replace(twin(num_warps=2, extra_us=7), implementation="in_place"))
    assert other_implementation.message == ""
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


def test_a_fault_of_the_machine_is_no_verdict(executor: GpuExecutor) -> None:
    for wanted in (candidate(run="machine"), candidate(compile="unwritable")):
        with pytest.raises(
            MissingDependencyError, match=r"this machine cannot compile .*(no space left|Permission den)"
        ):
            answer(executor, wanted)
        assert_works(executor)


def only(configs: set[Config]) -> Any:
    space = replace(OURS.space, reject=lambda config, shape, device: None if config in configs else "not wanted")
    return replace(OURS, space=space)


def test_a_search_records_every_fault_and_finds_the_winner(executor: GpuExecutor, tmp_path: Path) -> None:
    runs = ("fine", "wrong", "illegal", "die")
    compiles = ("fine", "raise", "huge", "exit")
    wanted = {config(compile=c, run=r) for c in compiles for r in runs if "fine" in (c, r)}
    store = Store(tmp_path)
    result = search(
        OPERATION, SHAPE, executor, store, limits=Limits(), implementations=[only(wanted)], sampler="exhaustive"
    )
    assert result.winner is not None
    assert result.winner.candidate == candidate()
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
