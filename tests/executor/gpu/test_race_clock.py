"""The seconds of a race run from its request: what is dropped before it takes from them, once for all that screen."""

from typing import Any
from unittest.mock import Mock

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.executor import Race, gpu, screener, screeners
from autotune.executor.compile_pool import Jobs
from autotune.executor.gpu import GpuExecutor
from autotune.executor.gpu_children import GpuChildren
from autotune.executor.messages import WorkingOn
from autotune.executor.screener import OWN_DROP_SECONDS, Screener
from autotune.trial import Outcome, Status
from tests.executor.fake_keeper import FakeClock
from tests.executor.faulty import OPERATION, SHAPE, candidate

LENT = 7


class SilentWorkers:
    """Stands in for ``WorkerKeeper``: ready at once, and silent over whatever it is asked."""

    device = NVIDIA_H200
    is_interrupted = False

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.lost = 0

    def identify(self) -> None: ...

    def open(self, *problem: Any) -> None: ...

    def is_ready(self, timeout: float) -> bool:
        return True

    def ask(self, request: Any) -> bool:
        return True

    def receive(self, timeout: float) -> Any:
        self._clock.now += timeout
        return None

    def lose(self) -> None:
        self.lost += 1

    def starving(self) -> Any:
        return Mock(__enter__=Mock(), __exit__=Mock(return_value=None))


def test_all_that_screen_are_left_one_moment_together_before_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, raced = FakeClock(), list[float]()
    for module in (gpu, screener, screeners):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)

    def race(*_: Any, seconds: float, **__: Any) -> Race:
        raced.append(seconds)
        return Race(())

    monkeypatch.setattr(gpu, "race_with_recovery", race)
    workers = [SilentWorkers(clock) for _ in range(LENT + 1)]
    pool: Any = Mock(in_flight=0)
    own: Any = workers[0]
    executor = GpuExecutor(children=GpuChildren(own, pool, Jobs(1, "one")))
    executor.open(OPERATION, SHAPE)
    returned: list[Any] = []
    lent: Any = workers[1:]
    for each in lent:
        executor.screeners.lend(Screener(each), returned.append)
    executor.screeners.welcome()
    for each in executor.screeners:
        each.ask(Outcome(candidate=candidate(), status=Status.OK), early_stop=True, patience=20.0)
    began = clock.now
    executor.race([candidate()], seconds=10.0)
    assert clock.now - began == OWN_DROP_SECONDS
    assert raced == [10.0 - OWN_DROP_SECONDS]
    assert returned == [None] * LENT
    assert [each.lost for each in workers] == [1] * (LENT + 1)


class TalkingWorkers(SilentWorkers):
    """Names a step at once, and an outcome a second later."""

    def receive(self, timeout: float) -> Any:
        if self._clock.now == 0.0:
            self._clock.now = 1.0
            return WorkingOn(None)
        return Outcome(candidate=candidate(), status=Status.OK)


def test_a_step_of_what_is_dropped_is_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    clock.now = 0.0
    monkeypatch.setattr(screener, "time", clock)
    workers: Any = TalkingWorkers(clock)
    dropped = Screener(workers)
    dropped.ask(Outcome(candidate=candidate(), status=Status.OK), early_stop=True, patience=20.0)
    dropped.drop(4.0)
    assert (dropped.compiled, workers.lost) == (None, 0)


@pytest.mark.parametrize(("said", "busy"), [(0.5, 0.5), (None, 10.0), (20.0, 10.0)])
def test_a_worker_rests_while_its_outcome_lies_unread(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch, said: float | None, busy: float
) -> None:
    executor._workers.await_ready()
    monkeypatch.setattr("autotune.executor.worker_keeper.time.monotonic", lambda: 100.0)
    monkeypatch.setattr(executor._workers, "_busy_seconds", 0.0)
    monkeypatch.setattr(executor._workers, "_busy_since", 90.0)
    executor._workers._rest(said)
    assert executor._workers.busy_seconds == busy
