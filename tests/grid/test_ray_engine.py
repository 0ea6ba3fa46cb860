"""The engine hands tasks to Ray: by priority, as many as run at once, never again to who cannot run them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autotune.grid import AttemptEnd, GridPlace, GridTask, ray_engine
from autotune.grid.place import absolute_place
from autotune.grid.ray_engine import GridOutcome, TaskState
from tests.grid.engine_run import DONE, H100, H200, Run, begun, node
from tests.grid.fake_ray import FakeRay, FakeRayError, FakeTaskError
from tests.grid.recorded_grid import task
from tests.grid.replay_worker import study_of

pytestmark = pytest.mark.usefixtures("quick_looks")


def device_of(text: str) -> str:
    return str(json.loads(text)["device"])


def unfit(why: str, scope: str = "host") -> str:
    return json.dumps({"unfit": why, "scope": scope})


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
