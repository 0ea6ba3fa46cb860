"""Runs the tasks of a grid on a Ray cluster: one task on one GPU, on nodes that carry the label of its device kind.

Ray carries tasks to nodes, starts those of a dead worker again and says which nodes live. What it does not know stands
here: a host that says it cannot go on gets nothing more, no more tasks are handed over than can run at once, one that
takes far longer than its budget is killed and tried elsewhere, and tasks that are done are left out. Ray itself is
imported in functions alone: everything else works without it.

A node's labels are custom resources, named like its device: ``ray start --resources '{"NVIDIA H200": 1}'``.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from autotune.errors import TableError, one_line
from autotune.grid.attempt import AttemptEnd
from autotune.grid.done_tasks import done_tasks
from autotune.grid.flight import Flight, Owner
from autotune.grid.grid_task import GridTask
from autotune.grid.place import GridPlace, absolute_place
from autotune.grid.ray_connection import connected, import_ray
from autotune.grid.ray_worker import run_encoded
from autotune.registry import implementation_names, implementation_reference, operation_reference
from autotune.table.reach import require_reachable

TaskState = Literal["skipped", "submitted", "moved", "done", "failed", "interrupted", "superseded"]
LABEL_SHARE: Final = 0.0001  # of a label, which marks a node and limits nothing: its GPUs do
MAX_DEATHS: Final = 5  # of workers under one task, until it counts as what kills them
MAX_GPU_FAULTS: Final = 3  # of a node, until it gets nothing more
MAX_MOVES: Final = 5  # of one task from hosts that died or cannot go on
LOOK_SECONDS: Final = 5.0  # between looks at which nodes live
CANCEL_SECONDS: Final = 20.0  # for workers to write that they were interrupted


class TaskObserver(Protocol):
    """Receives the progress of a run, from the thread that runs it."""

    def on_task(self, task: GridTask, state: TaskState, message: str = "") -> None:
        """A task was left out as done, handed to Ray, moved away from a host that cannot go on, or ended."""

    def on_missing(self, device: str, waiting: int) -> None:
        """No node carries the label of a device kind now; so many tasks wait for one."""


class _Silent:
    def on_task(self, task: GridTask, state: TaskState, message: str = "") -> None: ...

    def on_missing(self, device: str, waiting: int) -> None: ...


@dataclass
class GridOutcome:
    """The end of a run of a grid.

    Attributes:
        counts: how many tasks came to each state.
        failures: the tasks without a result, each with the reason.
        interrupted: Ctrl-C ended it early; what was measured until then is at the place, and another run continues.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[GridTask, str]] = field(default_factory=list)
    interrupted: bool = False


def run_on_ray(
    tasks: Iterable[GridTask],
    place: str | Path,
    *,
    address: str | None = None,
    replay: bool = False,
    imports: Sequence[str] = (),
    observer: TaskObserver | None = None,
) -> GridOutcome:
    """Run all tasks that are not done yet, those of higher priority first.

    Ctrl-C does not raise: the running tasks are interrupted, which keeps what they measured.

    Args:
        tasks: the grid; the same task given twice is run once.
        place: a path that all nodes share, or a URI that ``pyarrow.fs`` opens.
        address: of the cluster; by default that of ``RAY_ADDRESS`` or, where that is not set, the one on this machine,
            else one is started here for as long as the call takes.
        replay: recorded sweeps answer, and tasks take no GPU.
        imports: modules that workers import first. Operations and implementations of your own need none: workers load
            them from where they are registered here, which must be importable there.
        observer: receives progress.

    Raises:
        MissingDependencyError: Ray is not installed.
        UsageError: there is no cluster at the address.
        TableError: the place cannot be read, or written to, or does not answer within seconds.

    Example:
        >>> run_on_ray(read_grid("grid.toml"), "s3://bucket/llama", address="auto")
    """
    wanted = list({task.key: task for task in tasks}.values())
    place = absolute_place(place)
    require_reachable(place)
    done = done_tasks(GridPlace(place), {task.key for task in wanted}, "replay" if replay else "gpu")
    observer = observer or _Silent()
    if len(done) == len(wanted):  # Ray need not start
        for task in wanted:
            observer.on_task(task, "skipped")
        return GridOutcome(Counter(skipped=len(done)))
    require_reachable(place, writable=True)
    ray, labels = import_ray(), sorted({task.device for task in wanted} - {""})
    with connected(ray, address, labels, replay=replay) as is_own:
        run = _Run(ray, place, replay=replay, imports=tuple(imports), observer=observer, is_own=is_own)
        return run.run(wanted, done)


class _Run:
    """One run: the tasks that wait, by device kind; those that run, each on its node; and the room of each node.

    A task is given to one node that has a GPU free. Left to choose, Ray queues tasks at nodes; those at one that froze
    wait there for good (ray-project/ray#63405), though Ray itself has counted it as dead for long.
    """

    def __init__(
        self, ray: Any, place: str, *, replay: bool, imports: tuple[str, ...], observer: TaskObserver, is_own: bool
    ) -> None:
        self.ray, self.place, self.replay, self.imports, self.observer = ray, place, replay, imports, observer
        self.is_own = is_own  # the cluster was started for this run, and no node will join it
        self.outcome = GridOutcome()
        self.waiting: dict[str, deque[GridTask]] = {}
        self.flying: dict[Any, Flight] = {}
        self.hung: dict[str, set[str]] = {}  # by the key of a task, the nodes on which it did
        self.nodes: dict[str, Any] = {}  # the resources of those that live
        self.room: Counter[str] = Counter()
        # Nodes that cannot go on, with what they said: with tasks of a device kind, or with any (None).
        self.unfit: dict[tuple[str, str | None], str] = {}
        self.gpu_faults: Counter[str] = Counter()  # by node
        self.missing: dict[str, int] = {}  # device kinds that no node has, with how many tasks were said to wait
        self.moves: Counter[str] = Counter()
        self.looked = -LOOK_SECONDS
        self.remote = ray.remote(run_encoded)

    def run(self, tasks: Sequence[GridTask], done: Collection[str]) -> GridOutcome:
        for task in sorted(tasks, key=lambda task: -task.priority):
            if task.key in done:
                self._note(task, "skipped")
            else:
                self.waiting.setdefault(task.device, deque()).append(task)
        try:
            while self.flying or any(self.waiting.values()):
                if time.monotonic() - self.looked >= LOOK_SECONDS:
                    self._look()
                self._settle_ready()
        except KeyboardInterrupt:
            self.outcome.interrupted = True
            self._cancel()
        return self.outcome

    def _look(self) -> None:
        """See which nodes live, take their tasks from those that do not, and fill those that do."""
        self.looked, unit = time.monotonic(), "CPU" if self.replay else "GPU"
        self.nodes = {each["NodeID"]: each["Resources"] for each in self.ray.nodes() if each["Alive"]}
        for reference, flight in list(self.flying.items()):
            task, node = flight.task, flight.node
            if node not in self.nodes:
                self._forget(reference)
                self._move(task, f"node {node} is dead")
            elif self._has_hung(flight):
                self._forget(reference, is_hung=True)
                self.hung.setdefault(task.key, set()).add(node)
                self._move(task, f"it did not end within {task.longest_seconds:.0f} s, and its worker was killed")
        self.room = Counter({node: int(has.get(unit, 0)) for node, has in self.nodes.items()})
        self.room.subtract(each.node for each in self.flying.values() if each.node in self.room)
        for node in list(self.room):
            self._fill(node)
        for device, queue in self.waiting.items():
            carrying = [node for node, has in self.nodes.items() if has.get(unit, 0) >= 1 and _carries(has, device)]
            reasons = {self._why_unfit(node, device) for node in carrying}
            if carrying or not queue:
                self.missing.pop(device, None)
                if queue and None not in reasons:
                    self._fail(queue, f"no host is left that can run it: {'; '.join(sorted(map(str, reasons)))}")
            elif self.is_own:
                self._fail(queue, f"no Ray cluster is there, and this host has no GPU {device!r}".replace(" ''", ""))
            elif self.missing.get(device) != len(queue):
                self.missing[device] = len(queue)
                self.observer.on_missing(device, len(queue))

    def _owner(self, task: GridTask) -> Owner:
        """Return the attempt that owns a task now; None, too, where the place does not say: then any counts as new."""
        try:
            return GridPlace(self.place).owner(task.key)
        except (TableError, OSError):
            return None

    def _has_hung(self, flight: Flight) -> bool:
        try:
            return flight.has_hung(GridPlace(self.place))
        except (TableError, OSError):  # asked again at the next look
            return False

    def _fail(self, queue: deque[GridTask], why: str) -> None:
        while queue:
            self._note(queue.popleft(), "failed", why)

    def _why_unfit(self, node: str, device: str) -> str | None:
        return self.unfit.get((node, None)) or self.unfit.get((node, device))

    def _note_unfit(self, node: str, device: str, scope: str, why: str) -> None:
        """Note what a node cannot do any more; one of its GPUs that fails may do so a few times."""
        if scope == "gpu":
            self.gpu_faults[node] += 1
            if self.gpu_faults[node] < MAX_GPU_FAULTS:
                return
        self.unfit[node, device if scope == "device" else None] = why

    def _fill(self, node: str) -> None:
        """Give a node as many tasks as it has room for."""
        while self.room[node] > 0:
            has = self.nodes[node]
            nexts = [
                next((task for task in queue if not self._should_avoid(node, task)), None)
                for device, queue in self.waiting.items()
                if _carries(has, device) and self._why_unfit(node, device) is None
            ]
            if not (found := [task for task in nexts if task is not None]):
                return
            task = max(found, key=lambda each: each.priority)
            self.waiting[task.device].remove(task)
            self._submit(task, node)
            self.room[node] -= 1

    def _should_avoid(self, node: str, task: GridTask) -> bool:
        """Return True where a task hung on a node, and another is left that it did not hang on."""
        hung = self.hung.get(task.key, set())
        others = (each for each, has in self.nodes.items() if each not in hung and _carries(has, task.device))
        return node in hung and any(self._why_unfit(each, task.device) is None for each in others)

    def _submit(self, task: GridTask, node: str) -> None:
        strategies = self.ray.util.scheduling_strategies
        options: dict[str, Any] = {
            "name": str(task),
            "num_cpus": int(self.replay),
            "num_gpus": int(not self.replay),
            "resources": {task.device: LABEL_SHARE} if task.device else None,
            "max_retries": MAX_DEATHS,
            "scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node, soft=False),
        }
        encoded = json.dumps(task.as_dict())
        registered = json.dumps(_references(task))
        call = self.remote.options(**options)
        before = self._owner(task)
        reference = call.remote(encoded, registered, self.place, self.replay, list(self.imports))
        self.flying[reference] = Flight(task, node, before, looked=time.monotonic())
        self._note(task, "submitted")

    def _settle_ready(self) -> None:
        """Wait for an answer, and take all that are there."""
        if not self.flying:
            time.sleep(LOOK_SECONDS)
            return
        ready, others = self.ray.wait(list(self.flying), num_returns=1, timeout=LOOK_SECONDS)
        if ready and others:
            ready += self.ray.wait(others, num_returns=len(others), timeout=0)[0]
        for reference in ready:
            if reference in self.flying:  # which a look on the way may have taken
                self._settle(reference)

    def _settle(self, reference: Any) -> None:
        """Take the answer of a task that ended; it goes to another host where its own cannot go on."""
        flight, errors = self.flying.pop(reference), self.ray.exceptions
        task, node = flight.task, flight.node
        self.room[node] += 1
        try:
            answer = json.loads(self.ray.get(reference))
        except errors.TaskCancelledError:  # by somebody else: this run forgets what it cancels
            self._move(task, "it was cancelled")
        except errors.RayTaskError as error:
            self._note(task, "failed", one_line(getattr(error, "cause", None) or error))
        except errors.RayError as error:
            self._look()
            if node in self.nodes:
                self._note_lost(task, f"{MAX_DEATHS + 1} workers died under it: {one_line(error)}")
            else:
                self._move(task, f"node {node} is dead")
        else:
            if "unfit" in answer:
                self._note_unfit(node, task.device, answer["scope"], answer["unfit"])
                self._move(task, answer["unfit"])
                self._look()
                return
            if answer["state"] == "interrupted":  # on its node, as by who stops that
                self._move(task, "it was interrupted on its node")
            else:
                self._note(task, answer["state"], answer["message"])
        if node in self.nodes:
            self._fill(node)

    def _move(self, task: GridTask, message: str) -> None:
        """Let a task wait for another node, before all others of its kind."""
        self.moves[task.key] += 1
        if self.moves[task.key] > MAX_MOVES:
            self._note_lost(task, f"{MAX_MOVES + 1} hosts could not run it; the last: {message}")
            return
        self._note(task, "moved", message)
        self.waiting[task.device].appendleft(task)

    def _note_lost(self, task: GridTask, message: str) -> None:
        """Note at the place, too, what no worker lived to write."""
        with suppress(TableError, OSError):  # the outcome says so, too
            place = GridPlace(self.place)
            if (owner := place.owner(task.key)) is not None:
                place.end(AttemptEnd(task=task.key, token=owner[1], state="failed", seconds=0.0, message=message))
        self._note(task, "failed", message)

    def _note(self, task: GridTask, state: TaskState, message: str = "") -> None:
        self.outcome.counts[state] += 1
        if state == "failed":
            self.outcome.failures.append((task, message))
        self.observer.on_task(task, state, message)

    def _forget(self, reference: Any, *, is_hung: bool = False) -> None:
        """Let go of a task; should it still run on a node that counts as dead, a later attempt owns it.

        One that hung on a node that lives is killed with its worker: it may not look at anything any more.
        """
        del self.flying[reference]
        self.ray.cancel(reference, force=is_hung)

    def _cancel(self) -> None:
        references = list(self.flying)
        for reference in references:
            self.ray.cancel(reference)
        if references:
            self.ray.wait(references, num_returns=len(references), timeout=CANCEL_SECONDS)
        for flight in self.flying.values():
            self._note(flight.task, "interrupted")
        self.flying.clear()


def _carries(resources: Mapping[str, float], device: str) -> bool:
    """Return True for a node with the label of a device kind; any carries that of no kind."""
    return not device or device in resources


def _references(task: GridTask) -> dict[str, Any]:
    """Return where a worker finds the operation of a task and its implementations, which may be a user's own."""
    names = task.implementations or implementation_names(task.operation)
    return {
        "operation": operation_reference(task.operation),
        "implementations": {name: implementation_reference(task.operation, name) for name in names},
    }
