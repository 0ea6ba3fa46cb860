"""Plans of grids: the tasks, the GPU hours that they would take by what is recorded, and what is known already."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

from autotune import platforms
from autotune.device import Device
from autotune.dispatch import Outlook, device_by_name, outlook_on
from autotune.errors import InvalidShapeError
from autotune.grid.grid_task import GridTask
from autotune.search.pace import Pace, RecordedPace, nearest_pace, recorded_paces
from autotune.search.result import Limits
from autotune.table import shipped_sweeps
from autotune.units import few_text

NEAR: Final = 0.03  # an expected regret from which a search has little to gain
JOBS: Final = 8  # compilers that each GPU's host is taken to have for it
EXHAUSTIVE_TRIALS: Final = 400  # of a task without a limit: the spaces of ours have 160 to 490 valid configs
ANY_DEVICE: Final = "NVIDIA H200"  # as which a task for any device is planned


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task, the seconds that it is expected to take a GPU, and what is served for its shape before.

    Attributes:
        expected_regret: how much longer what is served is expected to take than the best, 0.02 for 2 %; None where
            nothing recorded tells.
        pace_from: the recorded sweep that the seconds are by; empty where they are assumed.
        problem: why it cannot be run, where it cannot: no implementation supports its shape on its device.
    """

    task: GridTask
    seconds: float
    expected_regret: float | None = None
    rung: str = ""
    pace_from: str = ""
    problem: str = ""

    @property
    def is_known(self) -> bool:
        """Return True if what is served is expected within ``NEAR`` of the best."""
        return self.expected_regret is not None and self.expected_regret <= NEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """The tasks of one operation on one kind of device, counted; ``seconds`` are of all that can be run."""

    device: str
    operation: str
    tasks: int
    unsupported: int
    known: int
    seconds: float
    known_seconds: float
    assumed: int

    @property
    def hours(self) -> float:
        """GPU hours of all."""
        return self.seconds / 3600

    @property
    def open_hours(self) -> float:
        """GPU hours of those that are not known yet."""
        return (self.seconds - self.known_seconds) / 3600


@dataclass(frozen=True, slots=True)
class GridPlan:
    """The planned tasks, their groups, and notes on what was assumed."""

    tasks: tuple[PlannedTask, ...]
    groups: tuple[PlannedGroup, ...]
    notes: tuple[str, ...] = ()


def plan_grid(tasks: Iterable[GridTask], *, jobs: int = JOBS) -> GridPlan:
    """Plan tasks by the tables that are served from and the recorded sweeps; write and run nothing.

    The seconds of a task are those of its trials, or of its budget if that is less, with its race. Compiling, ``jobs``
    configs at once, and judging, one at a time, overlap. A search that converges ends earlier.
    """
    costs, planned, strangers = _Costs(jobs), [], set()
    for task in tasks:
        device = costs.device(task.device)
        if device is None:
            strangers.add(task.device)
        planned.append(costs.plan(task, device))
    notes = []
    if strangers:
        names, known = few_text(sorted(map(repr, strangers))), platforms.known_devices()
        hints = "".join(platforms.did_you_mean(name, known) for name in sorted(strangers))
        notes.append(f"no table and no list knows {names}: planned without recordings, by assumed costs{hints}")
    if any(not task.task.device for task in planned):
        notes.append(f"tasks for any device are planned as on an {ANY_DEVICE}")
    return GridPlan(tuple(planned), _groups(planned), tuple(notes))


class _Costs:
    """Looks up devices, costs and what is served, each table once."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self.device = cache(lambda name: device_by_name(name or ANY_DEVICE))
        self._outlook = cache(outlook_on)
        self._paces = cache(_recorded)

    def plan(self, task: GridTask, device: Device | None) -> PlannedTask:
        if device is None:
            return PlannedTask(task, self._seconds(task, nearest_pace(task.shape, [])), rung="default")
        outlook: Outlook = self._outlook(task.operation, device, task.implementations or "ours")
        try:
            found = outlook.look(task.shape)
        except InvalidShapeError as error:
            return PlannedTask(task, 0.0, problem=str(error))
        pace = nearest_pace(task.shape, self._paces(task.operation, device))
        regret = found.expected_regret if found.evidence else None
        return PlannedTask(task, self._seconds(task, pace), regret, found.rung, pace.source)

    def _seconds(self, task: GridTask, pace: Pace) -> float:
        limits = Limits(task.trials, task.budget)
        trials = task.trials or EXHAUSTIVE_TRIALS
        judged = trials * max(pace.compile_seconds / self._jobs, pace.judge_seconds)
        total = judged + limits.race_seconds
        return total if task.budget is None else min(total, task.budget)


def _recorded(operation: str, device: Device) -> list[RecordedPace]:
    """Return the pace of each sweep of an operation that was recorded on a model of device at any power cap."""
    named = [(each.name, each.trials()) for each in shipped_sweeps(operation) if each.device == device.slug]
    found = {trial.device for _, trials in named for trial in trials if trial.device.model == device.model}
    return [pace for each in found for pace in recorded_paces(each, named)]


def _groups(planned: Iterable[PlannedTask]) -> tuple[PlannedGroup, ...]:
    sorted_in: dict[tuple[str, str], list[PlannedTask]] = {}
    for each in planned:
        sorted_in.setdefault((each.task.device, each.task.operation), []).append(each)
    return tuple(
        PlannedGroup(
            device=device,
            operation=operation,
            tasks=len(found),
            unsupported=sum(bool(each.problem) for each in found),
            known=sum(each.is_known for each in found),
            seconds=sum(each.seconds for each in found),
            known_seconds=sum(each.seconds for each in found if each.is_known),
            assumed=sum(not (each.pace_from or each.problem) for each in found),
        )
        for (device, operation), found in sorted(sorted_in.items())
    )
