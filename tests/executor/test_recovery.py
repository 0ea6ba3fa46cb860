"""The parent's side of a race, over a worker that follows a script."""

from unittest.mock import Mock

import pytest

from autotune.errors import SearchError, UnknownNameError
from autotune.executor import BaselineResult, Baselines, Race, recovery
from autotune.executor.child import ChildDiedError
from autotune.executor.messages import Entrant, WorkingOn
from autotune.trial import Status
from tests.executor.fake_keeper import FakeKeeper, Step, extra_bytes, finish
from tests.executor.faulty import candidate

FIRST, SECOND, THIRD = (candidate(extra_us=extra_us) for extra_us in (1, 2, 3))
DEATH = ChildDiedError("exit status 9")
PATIENCE = 100.0


def race(
    keeper: FakeKeeper, monkeypatch: pytest.MonkeyPatch, *, baselines: Baselines = ("naive",), seconds: float = 5.0
) -> Race:
    monkeypatch.setattr(recovery, "time", keeper.clock)
    return recovery.race_with_recovery(
        keeper,  # type: ignore[arg-type]
        [FIRST, SECOND, THIRD],
        seconds=seconds,
        baselines=baselines,
        patience=lambda candidate: PATIENCE,
    )


@pytest.mark.parametrize(
    ("deaths", "guilty"),
    [((1,), (SECOND,)), ((0, 1), (FIRST, THIRD)), ((2, 1, 0), (FIRST, SECOND, THIRD))],
    ids=["the second", "the first and the last", "all"],
)
def test_memory_stays_beside_its_config_when_others_are_lost(
    monkeypatch: pytest.MonkeyPatch, deaths: tuple[int, ...], guilty: tuple[object, ...]
) -> None:
    scripts: list[list[Step]] = [[WorkingOn(place), DEATH] for place in deaths]
    keeper = FakeKeeper([*scripts, [WorkingOn(0), finish]])
    found = race(keeper, monkeypatch)
    assert [outcome.candidate for outcome in found.outcomes] == [FIRST, SECOND, THIRD]
    assert [outcome.candidate for outcome in found.outcomes if outcome.status is Status.WORKER_DIED] == list(guilty)
    wanted = tuple(None if each in guilty else extra_bytes(each.config) for each in (FIRST, SECOND, THIRD))
    assert found.extra_bytes == (wanted if len(guilty) < 3 else ())
    assert keeper.lost == len(deaths)


def test_a_search_has_no_memory_after_a_loss_either(monkeypatch: pytest.MonkeyPatch) -> None:
    found = race(FakeKeeper([[WorkingOn(1), DEATH], [finish]]), monkeypatch, baselines="fastest")
    assert (len(found.outcomes), found.extra_bytes) == (3, ())


PREPARED: list[Step] = [
    *(WorkingOn(None), 50.0),  # the reference
    *(step for place in range(3) for step in (WorkingOn(place), 90.0)),
    *(step for name in ("naive", "flex") for step in (WorkingOn(name), 170.0)),
]


def test_a_comparison_may_take_long_to_be_ready_and_then_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = FakeKeeper([[*PREPARED, WorkingOn(0), 5.0, finish]])
    found = race(keeper, monkeypatch, baselines=["naive", "flex"])
    assert [outcome.status for outcome in found.outcomes] == [Status.OK] * 3
    assert [result.name for result in found.baselines] == ["naive", "flex"]
    assert (len(keeper.requests), keeper.clock.now) == (1, 1000.0 + 50.0 + 270.0 + 340.0 + 5.0)


ROUNDS: list[Step] = [  # the least that a race owes, of slow entrants: an hour and a half
    step for _ in range(15) for turn in (0, 1, 2, "naive") for step in (WorkingOn(turn), 90.0)
]


@pytest.mark.parametrize("baselines", [["naive"], "fastest"], ids=str)
@pytest.mark.parametrize("seconds", [5.0, 0.0])
def test_a_race_that_makes_progress_is_not_ended(
    monkeypatch: pytest.MonkeyPatch, baselines: Baselines, seconds: float
) -> None:
    """However slow its entrants are, and whatever its seconds are: none, where it is raced again."""
    keeper = FakeKeeper([[*PREPARED, WorkingOn(None), *ROUNDS, WorkingOn(None), 1.0, finish]])
    found = race(keeper, monkeypatch, baselines=baselines, seconds=seconds)
    assert [outcome.status for outcome in found.outcomes] == [Status.OK] * 3
    assert (len(keeper.requests), keeper.lost) == (1, 0)
    assert keeper.clock.now == 1000.0 + 660.0 + 5400.0 + 1.0


@pytest.mark.parametrize("before", [[], PREPARED, [*PREPARED, *ROUNDS]], ids=["first", "prepared", "raced"])
@pytest.mark.parametrize(("turn", "allowed"), [(None, 180.0), (1, PATIENCE), ("naive", 180.0)])
def test_a_worker_that_is_stuck_is_ended_at_any_turn(
    monkeypatch: pytest.MonkeyPatch, before: list[Step], turn: Entrant, allowed: float
) -> None:
    keeper = FakeKeeper([[*before, WorkingOn(turn), 10_000.0], [finish]])
    found = race(keeper, monkeypatch)
    assert keeper.clock.now == 1000.0 + sum(step for step in before if isinstance(step, float)) + allowed
    assert keeper.lost == 1
    told = [outcome.message for outcome in found.outcomes] + [result.message for result in found.baselines]
    assert "".join(told) == ("" if turn is None else f"the race stood still for {allowed:g} s")
    assert keeper.requests[1].without == (("naive",) if turn == "naive" else ())
    assert keeper.requests[1].baselines == ("none" if turn is None else ("naive",))


def test_a_worker_that_is_always_stuck_ends_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = FakeKeeper([[WorkingOn(0), 10_000.0]] * 3)
    assert [outcome.status for outcome in race(keeper, monkeypatch).outcomes] == [Status.HANG] * 3
    keeper = FakeKeeper([[10_000.0]] * 2)
    with pytest.raises(SearchError, match="while no finalist ran: hang: the race stood still for 180 s"):
        race(keeper, monkeypatch)
    assert keeper.clock.now == 1000.0 + 2 * 180.0


@pytest.mark.parametrize(("baselines", "left"), [(["naive", "flex"], 5.0), ("every", 5.0), ("fastest", 2.0)])
def test_what_was_sampled_is_lost_and_a_comparison_begins_again(
    monkeypatch: pytest.MonkeyPatch, baselines: Baselines, left: float
) -> None:
    keeper = FakeKeeper([[WorkingOn("flex"), 3.0, DEATH], [finish]])
    found = race(keeper, monkeypatch, baselines=baselines)
    assert [request.seconds for request in keeper.requests] == [5.0, left]
    assert keeper.requests[1].without == ("flex",)
    assert found.baselines[-1] == BaselineResult("flex", message="exit status 9")


def test_a_bare_name_is_no_collection_of_names() -> None:
    """mypy says so here, and that it need not be told where it does not."""
    given: list[Baselines] = ["none", ["slow"], ("slow",), frozenset({"slow"}), {"slow": 1}]
    given.append("slow")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="baselines='slow' is unknown; allowed: none, fastest, every, or a list"):
        recovery.race_with_recovery(Mock(), [candidate()], seconds=0.0, baselines=given[-1], patience=Mock())


def test_what_was_lost_with_every_finalist_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = FakeKeeper([[WorkingOn(entrant), DEATH] for entrant in ("naive", 0, 0, 0)])
    found = race(keeper, monkeypatch)
    assert [outcome.status for outcome in found.outcomes] == [Status.WORKER_DIED] * 3
    assert found.baselines == (BaselineResult("naive", message="exit status 9"),)
