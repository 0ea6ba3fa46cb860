"""Runs one task of a grid on this host: it resumes what the place has of it, and shares each batch of trials at once.

A batch counts as acknowledged once it is at the place, so a host may be lost at any moment: the next attempt goes on
from there, on whatever host.
"""

import errno
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from autotune import platforms
from autotune.device import Device
from autotune.errors import (
    AutotuneError,
    GpuFaultError,
    HostError,
    MissingDependencyError,
    OtherDeviceError,
    SupersededError,
    TableError,
    UnusableGpuError,
    one_line,
)
from autotune.executor.replay import ReplayExecutor
from autotune.executor.select import NO_GPU, ExecutorInfo, Settings, describe_executor, open_replay
from autotune.grid.attempt import AnsweredBy, AttemptEnd, State
from autotune.grid.done_tasks import done_tasks
from autotune.grid.grid_task import GridTask
from autotune.grid.place import GridPlace
from autotune.grid.task_claim import PATIENCE_SECONDS, TaskClaim
from autotune.search import Observer
from autotune.search.recorder import NO_VERDICT
from autotune.table import Store
from autotune.table.files import read_bytes
from autotune.trial import Trial
from autotune.tuning import TunedShape, tune, why_unwritable

SCRATCH: Final = "AUTOTUNE_SCRATCH"  # the folder of this host for what is not at the place yet
DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO})  # no fault of a task


class SharedStore(Store):
    """A store whose parts are at the grid's place, too, before they count as kept."""

    def __init__(self, root: Path, claim: TaskClaim) -> None:
        super().__init__(root)
        self._claim = claim
        self._trials: list[Trial] = []  # all of this attempt
        self._shared: set[Path] = set()  # the parts that hold them

    def append(self, trials: Iterable[Trial]) -> list[Path]:
        """Keep a batch here and share it.

        Raises:
            SupersededError: a later attempt owns the task.
            HostError: the place cannot be reached.
            TableError: as a store's, such as on a full disk.
        """
        batch = list(trials)
        parts = self._share(batch)
        self._trials += batch
        self._shared |= set(parts)
        return parts

    def _share(self, trials: list[Trial]) -> list[Path]:
        parts = super().append(trials)
        for part in parts:
            self._claim.share(part.relative_to(self.root).as_posix(), read_bytes(part))
        return parts

    def compact(self, operation: str, device: Device) -> None:
        """Share all trials of the attempt in one part for each implementation, and take the part of each batch away.

        Whoever reads the place meanwhile finds a trial in one of both, or in both, if it looks again for what went.
        Where that fails, as at a place that keeps what was written, some or all stay, which a merge reads once.

        Raises:
            SupersededError: a later attempt owns the task.
        """
        with suppress(HostError, TableError):
            whole = set(self._share(self._trials))
            batches, self._shared = self._shared - whole, self._shared | whole
            self._claim.withdraw(part.relative_to(self.root).as_posix() for part in sorted(batches))
            self._shared -= batches


@dataclass
class _Count(Observer):
    """Counts the trials of an attempt."""

    statuses: Counter[str] = field(default_factory=Counter)

    def on_trial(self, trial: Trial) -> None:
        self.statuses[trial.status.value] += 1


def run_task(
    task: GridTask,
    place: GridPlace,
    *,
    replay: bool = False,
    settings: Settings | None = None,
    scratch: Path | None = None,
    patience: float = PATIENCE_SECONDS,
) -> AttemptEnd:
    """Run a task on this host, unless it is done, and return how it ended.

    Ctrl-C ends it as ``interrupted``; what was measured is at the place.

    Args:
        task: what is tuned.
        place: where its trials and its attempts are written.
        replay: sweeps that were recorded on the task's device answer; no GPU is used.
        settings: how a GPU is used.
        scratch: where trials lie until they are at the place; ``$AUTOTUNE_SCRATCH``, else the usual temporary folder.
        patience: seconds that the place may be out of reach.

    Raises:
        HostError: this host cannot run it: its disk is full, it lacks the device, or does not reach the place.
        SupersededError: a later attempt owns the task.
    """
    if (done := _done(task, place, "replay" if replay else "gpu")) is not None:
        return done
    here = _describe(task, settings or Settings(), replay=replay)
    claim = TaskClaim(task, place, here, patience=patience)
    started, count = time.monotonic(), _Count()

    def ending(state: State, message: str = "") -> AttemptEnd:
        seconds = time.monotonic() - started
        return AttemptEnd(
            task=task.key,
            token=claim.attempt.token,
            state=state,
            seconds=seconds,
            trials=dict(count.statuses),
            message=message,
        )

    try:
        state, message = _tune(task, claim, settings, scratch or _scratch(), count, replay=replay)
        claim.require()
    except (HostError, SupersededError) as error:
        with suppress(HostError):
            claim.end(ending("interrupted", str(error)))
        raise
    except Exception as error:
        claim.end(ending("failed", one_line(error)))
        raise
    found = ending(state, message)
    claim.end(found)
    return found


def _tune(
    task: GridTask, claim: TaskClaim, settings: Settings | None, scratch: Path | None, count: _Count, *, replay: bool
) -> tuple[State, str]:
    """Search, and return the state that it ended in; raise HostError for what is no fault of the task's."""
    try:
        with _make_scratch(scratch) as folder:
            store = SharedStore(Path(folder), claim)
            if (problem := why_unwritable(store.root)) is not None:
                raise HostError(f"{folder} cannot be written: {problem}")
            claim.fetch(store.root)
            found = tune(
                [(task.operation, task.shape)],
                implementations=task.implementations,
                budget=task.budget,
                trials=task.trials,
                sampler=task.sampler,
                seed=task.seed,
                device=task.device or None,
                settings=settings,
                store=store,
                observer=count,
                must_measure=not replay,
                must_replay=replay,
            )
    except (HostError, SupersededError):
        raise
    except (TableError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno in DISK_ERRORS:
            raise HostError(str(error)) from error
        return "failed", str(error) if isinstance(error, TableError) else one_line(error)
    except UnusableGpuError as error:
        raise GpuFaultError(str(error)) from error
    except AutotuneError as error:
        if set(count.statuses) and set(count.statuses) <= {status.value for status in NO_VERDICT}:
            raise GpuFaultError(f"no trial got a verdict: {error}") from error  # as where the GPU fell off its bus
        return "failed", str(error)
    if found.interrupted:
        return "interrupted", "interrupted"
    if found.failures:
        return "failed", found.failures[0].failure
    message = _replay_note(found.results[0]) if replay else ""
    return ("done", message) if found.holds else ("failed", "its winner does not compile, or is wrong, on this host")


def _replay_note(found: TunedShape) -> str:
    """Say which recorded shape answered, since its rows are of that one."""
    return f"replayed by the sweep of {found.operation}: {found.shape}" + (
        f", the nearest to {found.asked}" if found.shape != found.asked else ""
    )


def _describe(task: GridTask, settings: Settings, *, replay: bool) -> ExecutorInfo:
    """Describe what will answer; HostError where this host has no such device."""
    if replay:
        found: ExecutorInfo | ReplayExecutor = open_replay(task.device or None, settings.policy)
        return ExecutorInfo("replay", found.device, found.toolchain, found.policy)
    if not platforms.has_gpu():
        raise GpuFaultError(NO_GPU)
    try:
        found = describe_executor(task.device or None, settings.policy, index=settings.index)
    except MissingDependencyError as error:
        raise GpuFaultError(str(error)) from error
    if found.name != "gpu" or isinstance(found, ReplayExecutor):
        raise OtherDeviceError(f"{task}: this host has another GPU; give its node the resource label of its own kind")
    return found


def _done(task: GridTask, place: GridPlace, executor: AnsweredBy) -> AttemptEnd | None:
    try:
        return done_tasks(place, {task.key}, executor).get(task.key)
    except (OSError, TableError):  # where the place stays out of reach, beginning the attempt says so
        return None


def _make_scratch(parent: Path | None) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="autotune-task-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise HostError(f"{SCRATCH}: {parent or tempfile.gettempdir()} cannot be written: {error.strerror}") from error


def _scratch() -> Path | None:
    return Path(named) if (named := os.environ.get(SCRATCH)) else None
