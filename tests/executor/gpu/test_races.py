"""A race loses only those who end it: their worker is replaced, and the rest are raced again."""

import pytest

from autotune.errors import SearchError
from autotune.executor import BaselineResult, messages, recovery
from autotune.executor.gpu import GpuExecutor
from autotune.trial import Status
from tests.executor.driving import assert_works, collect
from tests.executor.fake_worker import timing
from tests.executor.faulty import OPERATION, SHAPE, candidate, config
from tests.executor.processes import Processes


@pytest.mark.parametrize(
    ("run", "status", "message"),
    [
        ("race_die", Status.WORKER_DIED, "exit status 9"),
        pytest.param("race_hang", Status.HANG, "the race stood still for 2 s", marks=pytest.mark.slow),
        ("race_illegal", Status.ILLEGAL_ACCESS, "race_illegal"),
        ("race_raise", Status.LAUNCH_ERROR, "race_raise"),
    ],
)
def test_a_race_goes_on_without_the_one_that_ended_it(
    executor: GpuExecutor, run: str, status: Status, message: str
) -> None:
    guilty = [candidate(run=run), candidate(run=run, extra_us=1)]
    fine = [candidate(extra_us=extra_us) for extra_us in range(2)]
    race = executor.race([fine[0], guilty[0], fine[1], guilty[1]], seconds=0.1)
    assert [(o.candidate, o.status, o.message, o.timing) for o in race.outcomes] == [
        (fine[0], Status.OK, "", timing(fine[0].config)),
        (guilty[0], status, message, None),
        (fine[1], Status.OK, "", timing(fine[1].config)),
        (guilty[1], status, message, None),
    ]
    assert race.fastest_baseline.name == "sdpa_flash"
    assert_works(executor)


def test_a_race_of_none_but_the_guilty_ends(executor: GpuExecutor) -> None:
    race = executor.race([candidate(run="race_die"), candidate(run="race_raise")], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.WORKER_DIED, Status.LAUNCH_ERROR]
    assert race.baselines == ()
    assert_works(executor)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("baseline_die", "exit status 9"),
        pytest.param("baseline_hang", "the race stood still for 3 s", marks=pytest.mark.slow),
        ("baseline_raise", "refused"),
    ],
)
def test_a_broken_baseline_is_no_finalists_fault(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch, run: str, message: str
) -> None:
    monkeypatch.setattr(recovery, "BASELINE_SECONDS", 3.0)
    race = executor.race([candidate(), candidate(run=run)], seconds=5.0)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK, Status.OK]
    kept = BaselineResult("sdpa_math", timing(config()))
    assert race.baselines == (kept, BaselineResult("sdpa_flash", message=message))
    assert_works(executor)


def test_a_race_that_ends_while_no_entrant_runs_is_tried_again(executor: GpuExecutor) -> None:
    race = executor.race([candidate(), candidate(run="race_void_once")], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK, Status.OK]
    assert race.baselines == ()
    with pytest.raises(SearchError, match="the race failed while no finalist ran: worker_died: exit status 9"):
        executor.race([candidate(), candidate(run="race_void")], seconds=0.1)
    assert_works(executor)


@pytest.mark.slow
def test_finalists_that_are_slow_in_turn_do_not_hang(executor: GpuExecutor) -> None:
    """Each is silent for 0.8 s; together that is more than the 2 s that one may be."""
    race = executor.race([candidate(run="race_slow", extra_us=extra_us) for extra_us in range(3)], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK] * 3
    assert_works(executor)


def test_a_full_shape_that_does_not_fit_is_no_finalists_fault(executor: GpuExecutor) -> None:
    with pytest.raises(SearchError, match="faulty cannot be made on this GPU: the full shape does not fit; free its"):
        executor.race([candidate(run="race_unopened")], seconds=0.1)
    assert_works(executor)


def test_a_race_ends_what_is_compiling(executor: GpuExecutor, shared_processes: Processes) -> None:
    idle = shared_processes.living()
    for fault in ("grandchild", "hang", "fine"):
        executor.submit(candidate(compile=fault))
    shared_processes.wait_for(len(idle) + 3)  # two compilers, and what one of them started
    assert executor.race([candidate()], seconds=0.1).outcomes[0].status is Status.OK
    shared_processes.wait_for(len(idle))
    assert_works(executor)
    assert executor.collect(0.1) is None


def test_an_interrupted_race_is_not_answered_later(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(timeout: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(executor._workers, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            executor.race([candidate()], seconds=0.1)
    executor.open(OPERATION, SHAPE)
    assert_works(executor)


def test_binaries_of_every_output_are_compiled_before_a_race(executor: GpuExecutor) -> None:
    """Screened by its first output it is fine; those that compute all do not fit."""
    fine, refused = candidate(), candidate(compile="huge_for_all")
    executor.submit(refused)
    assert collect(executor).status is Status.OK
    race = executor.race([refused, fine], seconds=0.1)
    assert [(o.candidate, o.status, o.timing) for o in race.outcomes] == [
        (refused, Status.OUT_OF_RESOURCES, None),
        (fine, Status.OK, timing(fine.config)),
    ]
    assert race.fastest_baseline.name == "sdpa_flash"
    assert executor.race([refused], seconds=0.1).outcomes[0].status is Status.OUT_OF_RESOURCES
    assert_works(executor)


def test_what_a_race_needs_is_compiled_while_others_are_screened(executor: GpuExecutor) -> None:
    expected, refused = candidate(extra_us=3), candidate(compile="huge_for_all")
    for each in (expected, refused):
        executor.submit(each)
    assert {collect(executor).status for _ in range(2)} == {Status.OK}
    executor.expect_race([expected, refused], is_near=False)
    executor.submit(candidate(extra_us=5))
    assert collect(executor).candidate == candidate(extra_us=5)  # no outcome comes of what is prepared
    assert executor.collect(0.5) is None
    race = executor.race([expected, refused], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK, Status.OUT_OF_RESOURCES]
    assert_works(executor)


def test_a_race_awaits_the_compiles_that_began_for_it(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[messages.Message] = []
    send = executor._pool._send

    def note(message: messages.Message) -> None:
        sent.append(message)
        send(message)

    monkeypatch.setattr(executor._pool, "_send", note)
    expected = candidate(extra_us=5)
    executor.submit(candidate(compile="hang"))
    executor.expect_race([expected], is_near=True)
    race = executor.race([expected], seconds=0.1)
    assert [outcome.status for outcome in race.outcomes] == [Status.OK]
    assert [type(each).__name__ for each in sent] == ["Compile", "Compile", "KeepCompiling"]


def test_one_race_takes_candidates_of_several_implementations(executor: GpuExecutor) -> None:
    entrants = [candidate(), candidate("in_place", extra_us=1), candidate("in_place", run="race_die")]
    race = executor.race(entrants, seconds=0.1)
    assert [outcome.candidate for outcome in race.outcomes] == entrants
    assert [outcome.status for outcome in race.outcomes] == [Status.OK, Status.OK, Status.WORKER_DIED]
    assert [outcome.timing for outcome in race.outcomes[:2]] == [timing(each.config) for each in entrants[:2]]
