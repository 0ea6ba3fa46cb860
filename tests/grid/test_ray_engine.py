"""The engine hands tasks to Ray: by priority, as many as run at once, never again to who cannot run them."""

import io
import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.errors import MissingDependencyError, TableError, UsageError
from autotune.grid import Attempt, AttemptEnd, GridPlace, GridTask, flight, ray_connection, ray_engine
from autotune.grid.place import absolute_place
from autotune.grid.ray_engine import GridOutcome, TaskState, run_on_ray
from tests.grid import recorded_grid
from tests.grid.fake_ray import FakeRay, FakeRayError, FakeTaskError
from tests.grid.recorded_grid import task
from tests.grid.replay_worker import study_of

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
DONE = json.dumps({"state": "done", "message": ""})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the nodes before each answer."""
    recorded_grid.install(monkeypatch)
    monkeypatch.setattr(ray_engine, "LOOK_SECONDS", 0.0)


class Run:
    """One run on a fake cluster, and what it reported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ray: FakeRay, place: Path) -> None:
        self.ray, self.place = ray, place
        self.states: list[tuple[int, TaskState]] = []
        self.missing: list[tuple[str, int]] = []
        monkeypatch.setattr(ray_engine, "import_ray", lambda: ray)

    def on_task(self, task: GridTask, state: TaskState, message: str = "") -> None:
        self.states.append((study_of(task), state))

    def on_missing(self, device: str, waiting: int) -> None:
        self.missing.append((device, waiting))

    def run(self, tasks: list[GridTask], **options: Any) -> GridOutcome:
        return run_on_ray(tasks, self.place, observer=self, **options)

    def order(self) -> list[int]:
        return [study for study, state in self.states if state == "submitted"]


def begun(study: int, **changes: Any) -> Attempt:
    fields: dict[str, Any] = {"task": task(study).key, "number": 1, "token": "f0", "host": "node", "device": H200}
    fields |= {"power_cap_watts": 700.0, "toolchain": "triton 3.6.0", "started": datetime.now(UTC)}
    return Attempt(**{**fields, **changes})


def device_of(text: str) -> str:
    return str(json.loads(text)["device"])


def unfit(why: str, scope: str = "host") -> str:
    return json.dumps({"unfit": why, "scope": scope})


def node(gpus: int = 1, label: str = H200) -> dict[str, float]:
    return {"CPU": 8, "GPU": gpus, label: 1}


def test_tasks_run_by_priority_and_as_many_as_there_are_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = FakeRay({"a": node(2), "b": node(1)}, lambda *_: DONE)
    run = Run(monkeypatch, ray, tmp_path)
    outcome = run.run([task(study) for study in reversed(range(9))])
    assert outcome == GridOutcome(Counter(submitted=9, done=9))
    assert run.order() == list(range(9))
    assert ray.most == 2
    options = ray.submitted[0][0]
    assert (options["num_gpus"], options["num_cpus"], options["max_retries"]) == (1, 0, ray_engine.MAX_DEATHS)
    assert set(options["resources"]) == {H200}


def test_a_replay_takes_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = FakeRay({"a": {"CPU": 2, H200: 1}}, lambda *_: DONE)
    Run(monkeypatch, ray, tmp_path).run([task(0)], replay=True, imports=["my_package"])
    ((options, arguments),) = ray.submitted
    assert (options["num_gpus"], options["num_cpus"]) == (0, 1)
    encoded, references, *others = arguments
    assert (json.loads(encoded), others) == (task(0).as_dict(), [str(tmp_path), True, ["my_package"]])
    assert json.loads(references)["operation"] == "tests.grid.recorded_grid:OPERATION"
    assert set(json.loads(references)["implementations"]) == {"line", "short"}


def test_device_kinds_keep_to_their_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = FakeRay({"a": node(), "b": node(label=H100)}, lambda *_: DONE)
    tasks = [task(0), task(1, device=H100), task(2), task(3, device="")]
    assert Run(monkeypatch, ray, tmp_path).run(tasks).counts["done"] == 4
    placed = {
        json.loads(arguments[0])["device"]: options["scheduling_strategy"] for options, arguments in ray.submitted
    }
    assert (placed[H200], placed[H100]) == ("a", "b")


def test_tasks_wait_for_a_node_of_their_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = FakeRay({}, lambda *_: DONE)
    run = Run(monkeypatch, ray, tmp_path)
    report = run.on_missing

    def on_missing(device: str, waiting: int) -> None:
        report(device, waiting)
        ray.living["late"] = node()

    monkeypatch.setattr(run, "on_missing", on_missing)
    assert run.run([task(0), task(1)]).counts["done"] == 2
    assert run.missing == [(H200, 2)]


def test_tasks_that_are_done_and_tasks_given_twice_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for study, state in ((0, "done"), (1, "failed"), (2, "interrupted")):
        ending = AttemptEnd(task=task(study).key, token="f0", state=state, seconds=1.0)  # type: ignore[arg-type]
        GridPlace(tmp_path).end(ending)
        GridPlace(tmp_path).begin(begun(study))
    GridPlace(tmp_path).end(AttemptEnd(task=task(3).key, token="f0", state="done", seconds=1.0))
    GridPlace(tmp_path).begin(begun(3, executor="replay"))
    run = Run(monkeypatch, FakeRay({"a": node()}, lambda *_: DONE), tmp_path)
    outcome = run.run([*map(task, range(4)), *map(task, range(4))])
    assert outcome.counts == {"skipped": 1, "submitted": 3, "done": 3}


def test_a_host_that_cannot_go_on_gets_nothing_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = FakeRay({"full": node(), "sound": node()}, lambda _, at: unfit("full") if at == "full" else DONE)
    run = Run(monkeypatch, ray, tmp_path)
    outcome = run.run([task(study) for study in range(6)])
    assert (outcome.counts["done"], outcome.counts["moved"], outcome.failures) == (6, 1, [])
    assert [options["scheduling_strategy"] for options, _ in ray.submitted].count("full") == 1


def test_where_no_host_can_go_on_tasks_fail_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = FakeRay({"full": node()}, lambda *_: unfit("no space left"))
    outcome = Run(monkeypatch, ray, tmp_path).run([task(0), task(1)])
    assert [message for _, message in outcome.failures] == ["no host is left that can run it: no space left"] * 2


def test_a_node_of_another_device_goes_on_with_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As where a node carries a label too many."""
    ray = FakeRay(
        {"both": node() | {H100: 1}, "other": node(label=H100)},
        lambda text, at: unfit("another GPU", "device") if (at, device_of(text)) == ("both", H100) else DONE,
    )
    tasks = [task(study, device=device) for study in range(3) for device in (H100, H200)]
    outcome = Run(monkeypatch, ray, tmp_path).run(tasks)
    assert (outcome.counts["done"], outcome.counts["moved"], outcome.failures) == (6, 1, [])


@pytest.mark.parametrize(("faults", "done"), [(2, 4), (3, 0)])
def test_a_node_whose_gpus_fail_thrice_gets_nothing_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, faults: int, done: int
) -> None:
    ray = FakeRay(
        {"a": node()}, lambda *_: unfit("it fell off its bus", "gpu") if len(ray.submitted) <= faults else DONE
    )
    outcome = Run(monkeypatch, ray, tmp_path).run([task(study) for study in range(4)])
    assert (outcome.counts["done"], outcome.counts["moved"], outcome.counts["failed"]) == (done, faults, 4 - done)


def test_a_task_that_was_interrupted_on_its_node_runs_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stopped = json.dumps({"state": "interrupted", "message": "interrupted"})
    ray = FakeRay({"a": node()}, lambda *_: stopped if len(ray.submitted) == 1 else DONE)
    assert Run(monkeypatch, ray, tmp_path).run([task(0)]).counts == {"submitted": 2, "moved": 1, "done": 1}


def test_that_nobody_carries_a_label_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = FakeRay({"b": node(label=H100)}, lambda *_: DONE)
    run, nodes, looks = Run(monkeypatch, ray, tmp_path), ray.nodes, [0]

    def look() -> list[dict[str, Any]]:
        looks[0] += 1
        if looks[0] == 5:
            ray.living["late"] = node()
        return nodes()

    monkeypatch.setattr(ray, "nodes", look)
    assert run.run([task(0)]).counts["done"] == 1
    assert run.missing == [(H200, 1)]


def test_workers_get_a_local_place_from_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(monkeypatch, FakeRay({"a": node()}, lambda *_: DONE), Path("place"))
    run.run([task(0)])
    assert run.ray.submitted[0][1][2] == str(tmp_path / "place")
    monkeypatch.setenv("HOME", "/home/me")
    assert [absolute_place(each) for each in ("~/place", "s3://b/c")] == ["/home/me/place", "s3://b/c"]


class Starting(FakeRay):
    """No cluster answers; one that is started here has a node with what was asked for."""

    inits: list[dict[str, Any]]

    def is_initialized(self) -> bool:
        self._private = SimpleNamespace(ray_constants=SimpleNamespace(ENABLE_RAY_CLUSTER=True))
        return False

    def init(self, **options: Any) -> None:
        listens = self._private.ray_constants.ENABLE_RAY_CLUSTER
        self.inits = [*getattr(self, "inits", []), {**options, "listens": listens}]
        if options["address"] != "local":
            raise ConnectionError
        self.living["own"] = {"CPU": 8, "GPU": 1, **options["resources"]}

    def shutdown(self) -> None:
        self.living.clear()


@pytest.mark.parametrize(("replay", "labels"), [(False, {H200}), (True, {H200, H100})])
def test_a_cluster_of_our_own_has_the_label_of_the_gpu_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replay: bool, labels: set[str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(platforms, "has_gpu", lambda: True)
    monkeypatch.setattr(platforms, "current_device", lambda: NVIDIA_H200)
    ray = Starting({}, lambda *_: DONE)
    outcome = Run(monkeypatch, ray, tmp_path).run([task(0), task(1, device=H100)], replay=replay)
    assert set(ray.inits[1]["resources"]) == labels
    assert (ray.inits[1]["_node_ip_address"], ray.inits[1]["listens"]) == ("127.0.0.1", False)
    assert ray._private.ray_constants.ENABLE_RAY_CLUSTER
    assert outcome.counts["done"] == len(labels)
    expected = [] if replay else [f"no Ray cluster is there, and this host has no GPU '{H100}'"]
    assert [message for _, message in outcome.failures] == expected


def test_a_named_cluster_that_does_not_answer_is_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(f"{ray_connection.__name__}.socket.create_connection", lambda *_: io.BytesIO())
    run = Run(monkeypatch, ray := Starting({}, lambda *_: DONE), tmp_path)
    with pytest.raises(UsageError, match="address='head:1': no Ray cluster answers"):
        run.run([task(0)], address="head:1")
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    with pytest.raises(UsageError, match="RAY_ADDRESS='head:6379': no Ray cluster answers"):
        run.run([task(0)])
    assert len(ray.inits) == 2


def test_an_address_where_nothing_listens_is_refused_before_ray_tries_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(monkeypatch, ray := Starting({}, lambda *_: DONE), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(
            UsageError, match=rf"address='{address}': no Ray cluster answers there within 10 s \(.*refused"
        ):
            run.run([task(0)], address=address)
    assert not hasattr(ray, "inits")


def test_a_place_that_cannot_be_written_is_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    ray = FakeRay({"a": node()}, lambda *_: DONE)
    run = Run(monkeypatch, ray, tmp_path / "file" / "place")
    with pytest.raises(TableError, match=r"cannot be listed: Not a directory"):
        run.run([task(0)])
    assert ray.submitted == []


def test_tasks_of_a_dead_node_run_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where Ray itself does not answer for them, as for those that it queued at a frozen node."""
    ray = FakeRay({"frozen": node(), "sound": node()}, lambda _, at: None if at == "frozen" else DONE)
    run = Run(monkeypatch, ray, tmp_path)
    report = run.on_task

    def on_task(task: GridTask, state: TaskState, message: str = "") -> None:
        report(task, state, message)
        if state == "done":
            ray.living.pop("frozen", None)

    monkeypatch.setattr(run, "on_task", on_task)
    outcome = run.run([task(study) for study in range(4)])
    assert (outcome.counts["done"], outcome.counts["moved"], outcome.failures) == (4, 1, [])
    assert len(ray.cancelled) == 1


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


def test_what_kills_its_workers_fails_and_says_so_at_the_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = GridPlace(tmp_path)
    place.folder.write(f"tasks/{task(0).key}/6-0f.begun.json", b"")  # what its last worker wrote
    run = Run(monkeypatch, FakeRay({"a": node()}, lambda *_: FakeRayError("worker crashed")), tmp_path)
    ((_, message),) = run.run([task(0)]).failures
    assert message == "6 workers died under it: FakeRayError: worker crashed"
    (end,) = place.records([name for name in place.folder.list() if "ended" in name])[1]
    assert (end.state, end.token, end.message) == ("failed", "0f", message)


def test_a_failed_task_is_not_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = {0: json.dumps({"state": "failed", "message": "no config"}), 1: FakeTaskError(ValueError("a bug"))}
    ray = FakeRay({"a": node()}, lambda text, _: answers[study_of(GridTask.from_dict(json.loads(text)))])
    outcome = Run(monkeypatch, ray, tmp_path).run([task(0), task(1)])
    assert [message for _, message in outcome.failures] == ["no config", "ValueError: a bug"]
    assert len(ray.submitted) == 2


def test_ctrl_c_cancels_what_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = FakeRay({"a": node(2)}, lambda *_: None)
    waited = ray.wait

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if not ray.cancelled:
            raise KeyboardInterrupt
        return waited(*arguments, **options)

    monkeypatch.setattr(ray, "wait", interrupted)
    outcome = Run(monkeypatch, ray, tmp_path).run([task(study) for study in range(5)])
    assert outcome.interrupted
    assert outcome.counts == {"submitted": 2, "interrupted": 2}
    assert ray.cancelled == [0, 1]


def test_without_ray_an_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r'`pip install "attention-autotune\[ray\]"`'):
        run_on_ray([task(0)], tmp_path)


def test_the_engine_imports_without_ray() -> None:
    code = "import sys; sys.modules['ray'] = None; import autotune.grid.ray_engine"
    subprocess.run([sys.executable, "-c", code], check=True)
