"""Progress of grids: the state of each task, counted by what it runs on, from the records of its attempts alone."""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple, get_args

from autotune.errors import TableError
from autotune.grid.attempt import AnsweredBy, Attempt, AttemptEnd
from autotune.grid.grid_task import LOST_BUDGETS, LOST_SECONDS, GridTask
from autotune.grid.place import TASKS, GridPlace

ProgressState = Literal["waiting", "running", "done", "failed", "lost"]
STATES: Final[tuple[ProgressState, ...]] = get_args(ProgressState)
UNKNOWN_BUDGET: Final = 3600.0  # of a task that no grid lists, or without a limit
READERS: Final = 32  # records are small, and an object store answers each after milliseconds
CHUNK: Final = 64


class Runner(NamedTuple):
    """A kind of device at a power cap, and its toolchain, as attempts ran on; tables never mix two.

    ``executor`` tells a rehearsal from recorded sweeps, which does no task for a GPU, from what a GPU measured.
    """

    device: str
    power_cap_watts: float | None
    toolchain: str
    executor: AnsweredBy = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerProgress:
    """The tasks whose latest attempt is on one runner; waiting ones, which have none, stand at their kind of device."""

    runner: Runner
    hosts: int
    states: Mapping[ProgressState, int]
    trials: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProgress:
    """The rest for one kind of device: tasks, GPUs at work, and the seconds that these need for it.

    ``gpu_seconds_left`` is by the mean of what is done there, and before that by the budgets; None where neither is.
    ``seconds_left`` is also None where no GPU is at work.
    """

    device: str
    left: int
    running: int
    gpu_seconds_left: float | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GridProgress:
    """The whole of a grid at one moment; ``is_whole`` where its tasks are listed, those too that nobody began."""

    states: Mapping[ProgressState, int]
    trials: Mapping[str, int]
    runners: tuple[RunnerProgress, ...]
    devices: tuple[DeviceProgress, ...]
    failures: tuple[tuple[str, str], ...]
    is_whole: bool

    @property
    def is_over(self) -> bool:
        """Return True if no task that is known is waiting or running; one that is lost may never go on."""
        return not self.states.keys() & {"waiting", "running"}


class Ledger:
    """Knows the attempts of a grid's tasks, as they are read or reported, and counts them.

    Args:
        tasks: all tasks of the grid, where they are known; those that only have attempts are counted too.
    """

    def __init__(self, tasks: Iterable[GridTask] = ()) -> None:
        self._tasks = {task.key: task for task in tasks}
        self._latest: dict[str, Attempt] = {}
        self._endings: dict[str, dict[str, AttemptEnd]] = {}
        self._runners: dict[str, Runner] = {}
        self._seen: set[str] = set()

    def add(self, attempts: Iterable[Attempt], endings: Iterable[AttemptEnd]) -> None:
        """Add records, in any order and any number of times."""
        for attempt in attempts:
            known = self._latest.get(attempt.task)
            if known is None or attempt.order > known.order:
                self._latest[attempt.task] = attempt
            self._runners[attempt.token] = _runner_of(attempt)
        for ending in endings:
            self._endings.setdefault(ending.task, {})[ending.token] = ending

    def read(self, place: GridPlace) -> None:
        """Add the records of a place that are not known yet; they never change, so each is read once.

        A damaged one is warned of and passed over.

        Raises:
            TableError: the place cannot be read.
        """
        new = [name for name in place.folder.list(TASKS) if name not in self._seen]
        chunks = [new[start : start + CHUNK] for start in range(0, len(new), CHUNK)]
        with ThreadPoolExecutor(READERS) as readers:
            for records in readers.map(partial(place.records, on_damaged=_warn), chunks):
                self.add(*records)
        self._seen.update(new)

    def progress(self, now: datetime) -> GridProgress:
        """Count what is known at a moment."""
        states = {key: self._state(key, now) for key in {**self._tasks, **self._latest}}
        trials: Counter[str] = Counter()
        for endings in self._endings.values():
            for ending in endings.values():
                trials.update(ending.trials)
        failures = [
            (str(self._tasks.get(key, key)), self._endings[key][self._latest[key].token].message)
            for key, state in states.items()
            if state == "failed"
        ]
        return GridProgress(
            states={state: count for state in STATES if (count := Counter(states.values())[state])},
            trials=dict(sorted(trials.items())),
            runners=self._by_runner(states),
            devices=self._by_device(states, now),
            failures=tuple(failures),
            is_whole=bool(self._tasks),
        )

    def _state(self, key: str, now: datetime) -> ProgressState:
        latest, endings = self._latest.get(key), self._endings.get(key, {})
        if any(ending.state == "done" for ending in endings.values()):
            return "done"
        if latest is None:
            return "waiting"
        if (ending := endings.get(latest.token)) is not None:
            return "failed" if ending.state == "failed" else "waiting"  # an interrupted one is run again
        return "lost" if (now - latest.started).total_seconds() > self._limit(key) else "running"

    def _limit(self, key: str) -> float:
        task = self._tasks.get(key)
        budget = UNKNOWN_BUDGET if task is None or task.budget is None else task.budget
        return LOST_BUDGETS * budget + LOST_SECONDS

    def _by_runner(self, states: Mapping[str, ProgressState]) -> tuple[RunnerProgress, ...]:
        counts: dict[Runner, Counter[ProgressState]] = {}
        hosts: dict[Runner, set[str]] = {}
        for key, state in states.items():
            latest = self._latest.get(key)
            place = Runner(self._tasks[key].device, None, "") if latest is None else self._runners[latest.token]
            counts.setdefault(place, Counter())[state] += 1
            if latest is not None:
                hosts.setdefault(place, set()).add(latest.host)
        trials: dict[Runner, Counter[str]] = {}
        seconds: Counter[Runner] = Counter()
        for ending in (each for endings in self._endings.values() for each in endings.values()):
            if (runner := self._runners.get(ending.token)) is not None:
                trials.setdefault(runner, Counter()).update(ending.trials)
                seconds[runner] += ending.seconds  # type: ignore[assignment]  # a sum of any numbers
        return tuple(
            RunnerProgress(
                runner=runner,
                hosts=len(hosts.get(runner, ())),
                states={state: found[state] for state in STATES if found[state]},
                trials=dict(sorted(trials.get(runner, {}).items())),
                seconds=float(seconds[runner]),
            )
            for runner, found in sorted(counts.items(), key=lambda item: (item[0].device, str(item[0])))
        )

    def _by_device(self, states: Mapping[str, ProgressState], now: datetime) -> tuple[DeviceProgress, ...]:
        kinds: dict[str, dict[str, Any]] = {}
        for key, state in states.items():
            kind = kinds.setdefault(self._kind(key), {"running": 0, "budgets": [], "done": [], "elapsed": 0.0})
            if state not in ("done", "failed"):
                task = self._tasks.get(key)
                kind["budgets"].append(None if task is None else task.budget)
            if state == "running":
                kind["running"] += 1
                kind["elapsed"] += (now - self._latest[key].started).total_seconds()
            elif state == "done":
                kind["done"] += self._measured_seconds(key)
        return tuple(_left(slug, **kind) for slug, kind in sorted(kinds.items()))

    def _measured_seconds(self, key: str) -> list[float]:
        """Return the seconds that a GPU took for a task that is done; none where a recorded sweep answered."""
        endings = (each for each in self._endings[key].values() if each.state == "done")
        done = [each.seconds for each in endings if not self._is_replay(each.token)]
        return done[:1]

    def _is_replay(self, token: str) -> bool:
        return token in self._runners and self._runners[token].executor == "replay"

    def _kind(self, key: str) -> str:
        latest, task = self._latest.get(key), self._tasks.get(key)
        return latest.device if latest is not None else task.device if task is not None else ""


def _left(
    device: str, *, running: int, budgets: list[float | None], done: list[float], elapsed: float
) -> DeviceProgress:
    known, left = done or [each for each in budgets if each is not None], len(budgets)
    mean = sum(known) / len(known) if known else None if left else 0.0
    gpu_seconds = None if mean is None else max(0.0, left * mean - min(elapsed, running * mean))
    seconds = None if gpu_seconds is None or (left and not running) else gpu_seconds / max(1, running)
    return DeviceProgress(device=device, left=left, running=running, gpu_seconds_left=gpu_seconds, seconds_left=seconds)


def _warn(error: TableError) -> None:
    warnings.warn(f"{error}; it is passed over", RuntimeWarning, stacklevel=2)


def _runner_of(attempt: Attempt) -> Runner:
    return Runner(attempt.device, attempt.power_cap_watts, attempt.toolchain, attempt.executor)
