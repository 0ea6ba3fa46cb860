"""A real Ray cluster on one machine: whatever dies, every study finishes and nothing acknowledged is lost."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.executor.child import Child
from autotune.grid import GridPlace, GridTask
from autotune.grid.ray_engine import GridOutcome, TaskState, run_on_ray
from autotune.table import Store
from autotune.trial import Outcome, Trial
from autotune.tuning import tune
from tests import sample
from tests.grid import recorded_grid
from tests.grid.fingerprint import Fingerprint, distinct, fingerprint
from tests.grid.recorded_grid import NAME, STUDIES, task
from tests.grid.replay_worker import HELD_STUDIES, study_of

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).parents[2]
WORKER: Final = "tests.grid.replay_worker"
OBJECT_STORE: Final = 80 * 2**20
FILES_THAT_FIT: Final = 10  # on the disk that fills: less than a study
# A node counts as dead after some ten seconds: a busy machine is slow to answer, too.
HEALTH: Final = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 5,
}
PATIENCE_SECONDS: Final = 180.0


class Machine:
    """Four nodes and a head without work, on this machine; the disk of the last node has little room."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.control = folder / "control"
        for name in ("held", "released", "acknowledged"):
            (self.control / name).mkdir(parents=True)
        head = {"num_cpus": 0, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
        self.cluster: Any = Cluster(initialize_head=True, head_node_args={**head, "_system_config": HEALTH})
        for number in range(4):
            scratch = folder / f"scratch-{number}"
            scratch.mkdir()
            variables = {"AUTOTUNE_SCRATCH": str(scratch), "AUTOTUNE_TEST_CONTROL": str(self.control)}
            if number == 3:
                variables["AUTOTUNE_TEST_ROOM"] = str(FILES_THAT_FIT)
            self.cluster.add_node(
                wait=False,
                num_cpus=1,
                object_store_memory=OBJECT_STORE,
                resources={NVIDIA_H200.name: 1},
                env_vars=variables,
            )
        self.cluster.wait_for_nodes()

    def held(self) -> dict[int, dict[str, Any]]:
        """Return who is held, by study."""
        found = {path.name: path for path in (self.control / "held").iterdir() if not path.suffix}
        return {int(name): json.loads(path.read_text()) for name, path in found.items()}

    def release(self, study: int) -> None:
        (self.control / "released" / str(study)).touch()

    def node(self, raylet: int) -> Any:
        nodes = self.cluster.list_all_nodes()
        return next(each for each in nodes if each.all_processes["raylet"][0].process.pid == raylet)

    def acknowledged(self) -> set[tuple[int, str, str]]:
        lines = [line for path in (self.control / "acknowledged").iterdir() for line in path.read_text().splitlines()]
        return {tuple(json.loads(line)) for line in lines}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    recorded_grid.install(monkeypatch)
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_enable_metrics_collection", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    running = Machine(tmp_path)
    yield running
    ray.shutdown()
    running.cluster.shutdown()


def wait_for(what: str, is_true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def processes_of(raylet: int) -> list[int]:
    """Return the workers of a node."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended meanwhile
            continue
        if parent == raylet:
            found.append(int(path.parent.name))
    return found


class Noted:
    """Implements ``TaskObserver``."""

    def __init__(self) -> None:
        self.states: dict[int, list[TaskState]] = {}
        self.missing: list[str] = []

    def on_task(self, task: GridTask, state: TaskState, message: str = "") -> None:
        self.states.setdefault(study_of(task), []).append(state)

    def on_missing(self, device: str, waiting: int) -> None:
        self.missing.append(device)


def do_harm(machine: Machine, place: GridPlace) -> int:
    """Kill a worker, kill a node, freeze one until its task was retried, and let a disk fill; return whose was frozen.

    Each befalls another node, in the middle of a study.
    """
    wait_for("four studies are in their middle", lambda: len(machine.held()) == HELD_STUDIES)
    held = machine.held()
    assert len({who["raylet"] for who in held.values()}) == HELD_STUDIES
    full = next(study for study, who in held.items() if who["is_full"])
    killed, lost, frozen = (study for study in held if study != full)
    machine.release(full)
    os.kill(held[killed]["pid"], signal.SIGKILL)
    machine.cluster.remove_node(machine.node(held[lost]["raylet"]), allow_graceful=False)
    raylet = held[frozen]["raylet"]
    stopped = [raylet, *processes_of(raylet)]
    for each in stopped:
        os.kill(each, signal.SIGSTOP)
    key = task(frozen).key
    (first,) = [each for each in place.records()[0] if each.task == key]
    wait_for("the frozen task is retried", lambda: (place.owner(key) or (0,))[0] > 1)
    machine.release(frozen)
    os.kill(held[frozen]["pid"], signal.SIGCONT)
    wait_for("the woken worker stops", lambda: first.token in {end.token for end in place.records()[1]})
    for each in stopped:
        try:
            os.kill(each, signal.SIGCONT)
        except ProcessLookupError:
            continue
    return frozen


def undisturbed(folder: Path) -> Store:
    """Run the same studies one after the other, in this process."""
    store = Store(folder)
    for study in range(STUDIES):
        each = task(study)
        tune(
            [(NAME, each.shape)],
            budget=each.budget,
            trials=each.trials,
            sampler=each.sampler,
            device=each.device,
            store=store,
        )
    return store


def verdicts(trials: list[Trial]) -> dict[Fingerprint, tuple[Any, ...]]:
    """Return what was found of each trial; a replay finds the same each time."""

    def found(outcome: Outcome) -> tuple[Any, ...]:
        return outcome.status, outcome.timing, outcome.resources

    return {fingerprint(trial): found(trial.outcome) for trial in trials}


def winners(store: Store) -> dict[tuple[Any, ...], Any]:
    return {(row.implementation, row.shape, row.device): (row.config, row.timing) for row in store.winners(NAME)}


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of one node."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    node = {"num_cpus": 1, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=node)
    ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown()
    cluster.shutdown()


class Starter:
    """An actor whose methods start children, in threads of Ray's that end."""

    def __init__(self) -> None:
        self.child: Child | None = None

    def start(self) -> None:
        thread = threading.Thread(target=lambda: setattr(self, "child", Child("tests.executor.sleeps")))
        thread.start()
        thread.join()

    def is_living(self) -> bool:
        assert self.child is not None
        return self.child._await_end(1.0) is None


def test_children_outlive_the_threads_of_a_ray_worker(single: None) -> None:
    actor: Any = ray.remote(Starter).options(max_concurrency=2).remote()
    ray.get(actor.start.remote())
    assert ray.get(actor.is_living.remote())


def test_nothing_is_lost_whatever_dies(machine: Machine, tmp_path: Path) -> None:
    place, noted = GridPlace(tmp_path / "place"), Noted()
    harm: list[Any] = []

    def harmed() -> None:
        try:
            harm.append(do_harm(machine, place))
        except BaseException as error:
            harm.append(error)

    villain = threading.Thread(target=harmed)
    villain.start()
    tasks = [task(study) for study in range(STUDIES)]
    outcome = run_on_ray(
        tasks, str(place), address=machine.cluster.address, replay=True, imports=[WORKER], observer=noted
    )
    villain.join()
    assert isinstance(harm[0], int), harm
    assert_all_done(outcome, noted)

    merged, alone = Store(Path(str(place)) / "tables"), undisturbed(tmp_path / "alone")
    trials, expected = merged.trials(NAME), alone.trials(NAME)
    assert verdicts(trials) == verdicts(expected)
    assert winners(merged) == winners(alone)
    kept = {(study_of(row), row.stage, str(row.candidate)) for row in trials}
    assert machine.acknowledged() <= kept
    assert len(distinct(trials)) == len(verdicts(expected))

    attempts, endings = place.records()
    begun = Counter(each.task for each in attempts)
    assert min(begun[each.key] for each in tasks[:HELD_STUDIES]) >= 2
    (first,) = [each for each in attempts if (each.task, each.number) == (task(harm[0]).key, 1)]
    (end,) = [each for each in endings if each.token == first.token]
    assert "owns it now, not attempt 1" in end.message
    assert [end for end in endings if "No space left on device" in end.message]

    again = run_on_ray(tasks, str(place), address=machine.cluster.address, replay=True, imports=[WORKER])
    assert again.counts == {"skipped": STUDIES}


def assert_all_done(outcome: GridOutcome, noted: Noted) -> None:
    assert outcome.failures == []
    assert outcome.counts["done"] == STUDIES
    assert {states[-1] for states in noted.states.values()} == {"done"}
    assert outcome.counts["moved"] >= 1
