"""A task that runs for longer than any does has hung: it is killed, and runs elsewhere."""

import json
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.grid import GridPlace, GridTask, flight, ray_engine
from tests.grid.engine_run import DONE, Run, begun, node
from tests.grid.fake_ray import FakeRay
from tests.grid.recorded_grid import task
from tests.grid.replay_worker import study_of

pytestmark = pytest.mark.usefixtures("quick_looks")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the engine, which goes on by an hour each time that it is asked."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += 3600.0
        return now[0]

    fake = SimpleNamespace(monotonic=monotonic, time=lambda: 10**6 + now[0], sleep=lambda seconds: None)
    monkeypatch.setattr(ray_engine, "time", fake)
    monkeypatch.setattr(flight, "time", fake)
    return now


class Beginning:
    """Answers nothing on some nodes, where each submission of a task begins an attempt at the engine's time."""

    def __init__(
        self, place: Path, clock: list[float], hanging: Collection[str], *, again: bool = False, skew: float = 0.0
    ) -> None:
        self.place, self.clock, self.hanging, self.again = GridPlace(place), clock, hanging, again
        self.skew = skew
        self.begun: set[int] = set()
        self.left = 10  # answers of a worker that dies and begins again
        self.ray = FakeRay({"hanging": node(), "sound": node()} if "a" not in hanging else {"a": node()}, self)

    def __call__(self, encoded: str, at: str) -> str | None:
        number = len(self.ray.submitted) + (len(self.begun) if self.again else 0)
        if at in self.hanging and number not in self.begun:
            self.begun.add(number)
            started = datetime.fromtimestamp(10**6 + self.clock[0] + self.skew, UTC)
            key = GridTask.from_dict(json.loads(encoded)).key
            self.place.begin(begun(0, task=key, number=number, started=started))
        self.left -= 1
        return None if at in self.hanging and (self.left > 0 or not self.again) else DONE


def test_a_task_that_hangs_on_a_living_node_is_killed_and_runs_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: list[float]
) -> None:
    ray = Beginning(tmp_path, clock, ["hanging"]).ray
    outcome = Run(monkeypatch, ray, tmp_path).run([task(0, budget=60.0)])
    assert (outcome.counts["done"], outcome.counts["moved"], outcome.failures) == (1, 1, [])
    assert ray.killed == [0]
    assert [options["scheduling_strategy"] for options, _ in ray.submitted] == ["hanging", "sound"]


@pytest.mark.parametrize("seconds", [-7200.0, 7200.0])
def test_a_task_hangs_by_the_clock_of_the_engine_whatever_that_of_its_worker_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: list[float], seconds: float
) -> None:
    beginning = Beginning(tmp_path, clock, ["hanging"], skew=seconds)
    assert Run(monkeypatch, beginning.ray, tmp_path).run([task(0, budget=60.0)]).counts["moved"] == 1
    assert beginning.ray.killed == [0]


def test_a_task_that_always_hangs_fails_after_as_many_attempts_as_any(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: list[float]
) -> None:
    ray = Beginning(tmp_path, clock, ["a"]).ray
    ((_, message),) = Run(monkeypatch, ray, tmp_path).run([task(0, budget=60.0)]).failures
    assert message == ("6 hosts could not run it; the last: it did not end within 780 s, and its worker was killed")
    assert ray.killed == list(range(6))


def test_a_task_that_waits_for_a_gpu_of_another_job_does_not_hang(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: list[float]
) -> None:
    GridPlace(tmp_path).begin(begun(0, task=task(0, budget=60.0).key, started=datetime.fromtimestamp(1.0, UTC)))
    answers = iter([None] * 20)
    ray = FakeRay({"a": node()}, lambda *_: next(answers, DONE))
    assert Run(monkeypatch, ray, tmp_path).run([task(0, budget=60.0)]).counts == {"submitted": 1, "done": 1}
    assert ray.killed == []


def test_a_task_that_began_again_with_another_worker_has_its_time_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: list[float]
) -> None:
    ray = Beginning(tmp_path, clock, ["a"], again=True).ray
    assert Run(monkeypatch, ray, tmp_path).run([task(0, budget=7200.0)]).counts == {"submitted": 1, "done": 1}
    assert clock[0] > 3 * task(0, budget=7200.0).longest_seconds
    assert ray.killed == []


def test_what_waits_behind_a_task_that_hung_on_a_node_runs_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: list[float]
) -> None:
    """The first task hung on a node, and the second keeps the other busy until the third has ended."""
    first = task(0, budget=60.0, priority=9)
    left = iter(range(50))

    def answer(encoded: str, at: str) -> str | None:
        match study_of(GridTask.from_dict(json.loads(encoded))), at:
            case 0, "a":
                if GridPlace(tmp_path).owner(first.key) is None:
                    started = datetime.fromtimestamp(clock[0], UTC)
                    GridPlace(tmp_path).begin(begun(0, task=first.key, started=started))
                return None
            case 1, _:
                return None if (2, "done") not in run.states and next(left, None) is not None else DONE
        return DONE

    run = Run(monkeypatch, FakeRay({"a": node(), "b": node()}, answer), tmp_path)
    assert run.run([first, task(1), task(2)]).counts["done"] == 3
    assert [study for study, state in run.states if state == "done"] == [2, 1, 0]


def test_a_task_without_a_budget_may_take_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: list[float]
) -> None:
    answers = iter([None] * 20)
    ray = FakeRay({"a": node()}, lambda *_: next(answers, DONE))
    assert Run(monkeypatch, ray, tmp_path).run([task(0)]).counts == {"submitted": 1, "done": 1}
    assert ray.killed == []
