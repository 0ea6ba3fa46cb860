"""The parent's side of a race, over a worker that follows a script: whose memory is whose, how long all may take."""

from unittest.mock import Mock

import pytest

from autotune.errors import UnknownNameError
from autotune.executor import BaselineResult, Baselines, Race, racing
from autotune.executor.child import ChildDiedError
from autotune.trial import Status
from tests.executor.fake_keeper import FakeKeeper, Step, extra_bytes, finish, working_on
from tests.executor.faulty import config

FIRST, SECOND, THIRD = (config(extra_us=extra_us) for extra_us in (1, 2, 3))
DEATH = ChildDiedError("exit status 9")
PATIENCE = 100.0


def race(
    keeper: FakeKeeper, monkeypatch: pytest.MonkeyPatch, *, baselines: Baselines = ("naive",), seconds: float = 5.0
) -> Race:
    monkeypatch.setattr(racing, "time", keeper.clock)
    configs = [FIRST, SECOND, THIRD]
    return racing.race(keeper, configs, seconds=seconds, baselines=baselines, patience=PATIENCE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deaths", "guilty"),
    [((1,), (SECOND,)), ((0, 1), (FIRST, THIRD)), ((2, 1, 0), (FIRST, SECOND, THIRD))],
    ids=["the second", "the first and the last", "all"],
)
def test_memory_stays_beside_its_config_whoever_was_lost(
    monkeypatch: pytest.MonkeyPatch, deaths: tuple[int, ...], guilty: tuple[object, ...]
) -> None:
    scripts: list[list[Step]] = [[working_on(place), DEATH] for place in deaths]
    keeper = FakeKeeper([*scripts, [working_on(0), finish]])
    found = race(keeper, monkeypatch)
    assert [outcome.config for outcome in found.outcomes] == [FIRST, SECOND, THIRD]
    assert [outcome.config for outcome in found.outcomes if outcome.status is Status.WORKER_DIED] == list(guilty)
    wanted = tuple(None if each in guilty else extra_bytes(each) for each in (FIRST, SECOND, THIRD))
    assert found.extra_bytes == (wanted if len(guilty) < 3 else ())
    assert keeper.lost == len(deaths)


def test_a_search_has_no_memory_after_a_loss_either(monkeypatch: pytest.MonkeyPatch) -> None:
    found = race(FakeKeeper([[working_on(1), DEATH], [finish]]), monkeypatch, baselines="fastest")
    assert (len(found.outcomes), found.extra_bytes) == (3, ())


PREPARED: list[Step] = [
    *(working_on(None), 50.0),  # the reference
    *(step for place in range(3) for step in (working_on(place), 90.0)),
    *(step for name in ("naive", "flex") for step in (working_on(name), 170.0)),
]


def test_a_comparison_may_take_long_to_be_ready_and_then_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog would have ended it after 5 + 120 + 2 x 180 s, 665 s in all."""
    keeper = FakeKeeper([[*PREPARED, working_on(0), 5.0, finish]])
    found = race(keeper, monkeypatch, baselines=["naive", "flex"])
    assert [outcome.status for outcome in found.outcomes] == [Status.OK] * 3
    assert [result.name for result in found.baselines] == ["naive", "flex"]
    assert (len(keeper.requests), keeper.clock.now) == (1, 1000.0 + 50.0 + 270.0 + 340.0 + 5.0)


def test_a_comparison_that_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """At nobody's turn, when all were ready in no time: 5 + 120 s, 180 for the baseline, 100 for each config."""
    ready = [working_on(turn) for turn in (None, 0, 1, 2, "naive", None)]
    keeper = FakeKeeper([[*ready, 10_000.0], [finish]])
    found = race(keeper, monkeypatch)
    assert (keeper.clock.now, keeper.requests[1]["baselines"], found.baselines) == (1000.0 + 605.0, "none", ())


@pytest.mark.parametrize(("baselines", "left"), [(["naive", "flex"], 5.0), ("every", 5.0), ("fastest", 2.0)])
def test_what_was_sampled_is_lost_and_a_comparison_begins_again(
    monkeypatch: pytest.MonkeyPatch, baselines: Baselines, left: float
) -> None:
    keeper = FakeKeeper([[working_on("flex"), 3.0, DEATH], [finish]])
    found = race(keeper, monkeypatch, baselines=baselines)
    assert [request["seconds"] for request in keeper.requests] == [5.0, left]
    assert keeper.requests[1]["without"] == ["flex"]
    assert found.baselines[-1] == BaselineResult("flex", message="exit status 9")


def test_a_bare_name_is_no_collection_of_names() -> None:
    """mypy says so here, and that it need not be told where it does not."""
    given: list[Baselines] = ["none", ["slow"], ("slow",), frozenset({"slow"}), {"slow": 1}]
    given.append("slow")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="baselines='slow' is unknown; allowed: none, fastest, every, or a list"):
        racing.race(Mock(), [config()], seconds=0.0, baselines=given[-1], patience=1.0)
