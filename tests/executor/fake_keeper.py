"""Stands in for ``WorkerKeeper``: a worker that says in a race what a test wrote down, in no time of this world."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from autotune.executor import BaselineResult, Race
from autotune.executor.messages import FromWorker, RunRace
from autotune.space import Config
from autotune.trial import Conditions, Outcome, Status, Timing

# Seconds of silence, a message, what makes one of the request, or how the worker dies.
Step = float | FromWorker | Callable[[RunRace], FromWorker] | Exception

CONDITIONS = Conditions(sm_clock_mhz=1500, throttle_reasons="power", contended=True)


@dataclass
class FakeClock:
    """Stands in for the module ``time``."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class FakeKeeper:
    """Answers each request with the next script; every request is kept."""

    scripts: list[Sequence[Step]]
    clock: FakeClock = field(default_factory=FakeClock)
    requests: list[RunRace] = field(default_factory=list)
    lost: int = 0
    _steps: Iterator[Step] = field(default_factory=lambda: iter(()))

    def await_ready(self) -> None:
        pass

    def ask(self, request: RunRace) -> bool:
        self.requests.append(request)
        self._steps = iter(self.scripts[len(self.requests) - 1])
        return True

    def receive(self, timeout: float) -> FromWorker | None:
        step = next(self._steps)
        while isinstance(step, float):
            if step > timeout:
                self.clock.now += timeout
                return None
            self.clock.now += step
            timeout -= step
            step = next(self._steps)
        if isinstance(step, Exception):
            raise step
        return step(self.requests[-1]) if callable(step) else step

    def lose(self) -> None:
        self.lost += 1


def extra_bytes(config: Config) -> int:
    """The memory that the fake worker measures of a config: another number for each."""
    return 1000 + sum(value for value in config.values() if isinstance(value, int))


def finish(request: RunRace) -> Race:
    """The end of a race in which all are fine; memory is measured where systems are compared."""
    outcomes = tuple(
        Outcome(
            candidate=candidate,
            status=Status.OK,
            timing=Timing(100.0, 99.0, 101.0, 15),
            error=0.001,
            error_limit=0.004,
            conditions=CONDITIONS,
        )
        for candidate in request.candidates
    )
    if isinstance(request.baselines, str):
        return Race(outcomes)
    names = [name for name in request.baselines if name not in request.without]
    results = tuple(BaselineResult(name, Timing(200.0, 199.0, 201.0, 15), error=0.002) for name in names)
    extra = tuple(extra_bytes(candidate.config) for candidate in request.candidates)
    return Race(outcomes, results, extra)
