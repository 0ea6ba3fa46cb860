"""A task runs on a host: resumed, fenced, and shared trial by trial with all others."""

import errno
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import (
    GpuFaultError,
    HostError,
    LastingTableError,
    SupersededError,
    TableError,
    UnusableGpuError,
)
from autotune.executor import select
from autotune.grid import GridPlace, task_claim
from autotune.grid.done_tasks import done_tasks
from autotune.grid.task_runner import SharedStore, run_task
from autotune.table import Store
from autotune.table.remote import LocalFolder
from autotune.trial import Stage, Trial
from tests import sample
from tests.grid import recorded_grid
from tests.grid.fingerprint import distinct, fingerprint
from tests.grid.recorded_grid import CAPPED, CONFIGS, NAME, STUDIES, task
from tests.grid.replay_worker import fill_disk


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a GPU, with the recorded grid and a scratch folder of its own."""
    recorded_grid.install(monkeypatch)
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("AUTOTUNE_SCRATCH", str(tmp_path / "scratch"))


@pytest.fixture
def place(tmp_path: Path) -> GridPlace:
    return GridPlace(tmp_path / "place")


def rows(place: GridPlace) -> list[Trial]:
    return Store(Path(str(place)) / "tables").trials(NAME)


def screened(place: GridPlace) -> list[Trial]:
    return [row for row in rows(place) if row.stage is Stage.SCREEN]


class StoppedError(Exception):
    """The host is gone."""


def stop_after(monkeypatch: pytest.MonkeyPatch, batches: int, error: BaseException) -> None:
    """Raise in place of the batch after these."""
    original, left = SharedStore.append, [batches]

    def append(self: SharedStore, trials: Iterable[Trial]) -> list[Path]:
        if left[0] == 0:
            raise error
        left[0] -= 1
        return original(self, trials)

    monkeypatch.setattr(SharedStore, "append", append)


def test_a_task_leaves_its_trials_its_winner_and_its_end(place: GridPlace, tmp_path: Path) -> None:
    ending = run_task(task(3), place, replay=True)
    assert (ending.state, ending.trials) == ("done", {"ok": CONFIGS - 1, "wrong_result": 1})
    (winner,) = Store(Path(str(place)) / "tables").winners(NAME, implementations=["line"])
    assert winner.config["STEP"] == 4
    (attempt,), (recorded,) = place.records()
    assert (attempt.number, attempt.device, attempt.power_cap_watts) == (1, "NVIDIA H200", 700)
    assert recorded == ending
    assert list((tmp_path / "scratch").iterdir()) == []


def parts(place: GridPlace) -> list[Path]:
    return sorted((Path(str(place)) / "tables").rglob("*.parquet"))


def indexed(place: GridPlace) -> set[str]:
    return {path.name for path in (Path(str(place)) / "problems").rglob("*") if path.is_file()}


def test_a_task_that_ends_leaves_one_part_for_each_implementation(place: GridPlace) -> None:
    run_task(task(3), place, replay=True)
    assert len(parts(place)) == len({path.parent for path in parts(place)})
    assert indexed(place) == {path.stem for path in parts(place)}
    assert len(screened(place)) == CONFIGS


def test_a_place_that_keeps_its_files_keeps_a_part_for_each_batch(
    place: GridPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalFolder, name: str) -> None:
        raise LastingTableError(f"{name}: cannot be removed: Operation not permitted")

    monkeypatch.setattr(LocalFolder, "remove", refuse)
    assert run_task(task(3), place, replay=True).state == "done"
    assert len(parts(place)) > CONFIGS
    assert len({row.candidate for row in screened(place)}) == CONFIGS


def test_a_host_that_goes_while_parts_are_taken_away_loses_no_trial(
    place: GridPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, left = LocalFolder.remove, [5]

    def remove(self: LocalFolder, name: str) -> None:
        if left[0] == 0:
            raise StoppedError
        left[0] -= 1
        original(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "remove", remove)
        with pytest.raises(StoppedError):
            run_task(task(3), place, replay=True)
    assert len({row.candidate for row in screened(place)}) == CONFIGS
    ending = run_task(task(3), place, replay=True)
    assert (ending.state, ending.trials) == ("done", {})


def put_together(place: GridPlace) -> None:
    """Leave one part for each implementation, as a task of the problem does that ends."""
    root = Path(str(place))
    small = parts(place)
    for part in Store(root / "whole").append(rows(place)):
        there = root / "tables" / part.relative_to(root / "whole")
        (index,) = {path.parent for path in (root / "problems").rglob("*") if path.parent.name == there.parent.name}
        there.write_bytes(part.read_bytes())
        (index / there.stem).touch()
        for path in (path for path in small if path.parent == there.parent):
            (index / path.stem).unlink()
            path.unlink()


def test_parts_that_another_task_took_away_between_list_and_read_are_found_in_its_whole(
    place: GridPlace, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 5, StoppedError())
        with pytest.raises(StoppedError):
            run_task(task(0), place, replay=True)
    original = LocalFolder.read
    taken: list[Path] = []

    def read(self: LocalFolder, name: str) -> bytes:
        if not taken and name.endswith(".parquet"):
            taken.extend(parts(place))
            put_together(place)
        return original(self, name)

    monkeypatch.setattr(LocalFolder, "read", read)
    ending = run_task(task(0), place, replay=True)
    assert sum(ending.trials.values()) == CONFIGS - 5
    assert not [each for each in recwarn if "is gone" in str(each.message)]


def test_a_listing_that_misses_what_is_put_together_meanwhile_is_followed_by_another(
    place: GridPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 5, StoppedError())
        with pytest.raises(StoppedError):
            run_task(task(0), place, replay=True)
    listing, seen = LocalFolder.list, [0]

    def list_late(self: LocalFolder, prefix: str = "") -> list[str]:
        if prefix.startswith("problems/"):
            seen[0] += 1
            if seen[0] == 1:  # the parts went before it came to them, and the whole came after it had passed
                put_together(place)
                return []
        return listing(self, prefix)

    monkeypatch.setattr(LocalFolder, "list", list_late)
    ending = run_task(task(0), place, replay=True)
    assert sum(ending.trials.values()) == CONFIGS - 5


def test_a_replay_says_which_shape_answered(place: GridPlace) -> None:
    assert run_task(task(3), place, replay=True).message == f"replayed by the sweep of {NAME}: {task(3).shape}"
    far = task(STUDIES + 5)
    asked = run_task(far, place, replay=True).message
    assert asked.endswith(f": {task(STUDIES - 1).shape}, the nearest to {far.shape}")


def test_a_replay_opens_no_gpu_that_is_there(place: GridPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a GPU is looked for")

    monkeypatch.setattr(select, "_find_gpu", refuse)
    assert run_task(task(0), place, replay=True).state == "done"
    assert place.records()[0][0].executor == "replay"


def test_what_was_replayed_is_not_done_for_a_gpu(place: GridPlace) -> None:
    run_task(task(0), place, replay=True)
    assert done_tasks(place, {task(0).key}, "replay").keys() == {task(0).key}
    assert done_tasks(place, {task(0).key}, "gpu") == {}
    with pytest.raises(HostError, match="no GPU is visible"):
        run_task(task(0), place)


def test_a_task_that_is_done_is_not_run_again(place: GridPlace) -> None:
    first = run_task(task(0), place, replay=True)
    assert run_task(task(0), place, replay=True) == first
    assert len(place.records()[0]) == 1


def test_a_retry_measures_only_the_rest(place: GridPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 5, StoppedError())
        with pytest.raises(StoppedError):
            run_task(task(0), place, replay=True)
    ending = run_task(task(0), place, replay=True)
    assert sum(ending.trials.values()) == CONFIGS - 5
    assert len(screened(place)) == len({row.candidate for row in screened(place)}) == CONFIGS
    assert [attempt.number for attempt in place.records()[0]] == [1, 2]


def test_a_task_of_another_budget_resumes_too(place: GridPlace) -> None:
    run_task(task(0), place, replay=True)
    ending = run_task(task(0, budget=100.0), place, replay=True)
    assert (ending.state, ending.trials) == ("done", {})


def test_a_task_that_was_taken_over_adds_nothing_more(place: GridPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a host that freezes, is taken for dead, and wakes."""
    original, batches = SharedStore.append, [0]

    def append(self: SharedStore, trials: Iterable[Trial]) -> list[Path]:
        batches[0] += 1
        if batches[0] == 4:  # it wakes here, and another host has finished
            monkeypatch.setattr(SharedStore, "append", original)
            assert run_task(task(0), place, replay=True).state == "done"
        return original(self, trials)

    monkeypatch.setattr(SharedStore, "append", append)
    with pytest.raises(SupersededError, match="attempt 2 owns it now, not attempt 1"):
        run_task(task(0), place, replay=True)
    assert len(screened(place)) == len({row.candidate for row in screened(place)}) == CONFIGS
    assert {end.state for end in place.records()[1]} == {"done", "interrupted"}


def test_a_full_disk_is_the_hosts_fault_and_another_goes_on(place: GridPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fill_disk(patch, 6, Path(os.environ["AUTOTUNE_SCRATCH"]))
        with pytest.raises(HostError, match="No space left on device"):
            run_task(task(0), place, replay=True)
    acknowledged = set(rows(place))
    assert len(acknowledged) == 6
    assert run_task(task(0), place, replay=True).state == "done"
    assert acknowledged < set(rows(place))


def test_a_fault_of_a_task_costs_no_host(place: GridPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 0, TableError("a part is of another kind"))
    assert run_task(task(0), place, replay=True).message == "a part is of another kind"
    assert run_task(task(1), place, replay=True).state == "failed"


def test_a_gpu_that_cannot_be_opened_is_no_fault_of_a_task(place: GridPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 0, UnusableGpuError("the GPU cannot be opened: busy"))
    with pytest.raises(GpuFaultError, match="busy"):
        run_task(task(0), place, replay=True)


def test_a_scratch_folder_that_is_not_there_is_the_hosts_fault(place: GridPlace, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"AUTOTUNE_SCRATCH: .* cannot be written"):
        run_task(task(0), place, replay=True, scratch=tmp_path / "absent")


def test_a_part_that_was_compacted_at_the_place_is_passed_over(
    place: GridPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3, StoppedError())
        with pytest.raises(StoppedError):
            run_task(task(0), place, replay=True)
    (Path(str(place)) / place.folder.list("tables")[0]).unlink()
    with pytest.warns(RuntimeWarning, match="is gone, though it was indexed"):
        ending = run_task(task(0), place, replay=True)
    assert sum(ending.trials.values()) == CONFIGS - 2


@pytest.mark.parametrize("error", [LastingTableError("s3://b: access denied"), PermissionError(errno.EACCES, "denied")])
def test_a_place_that_refuses_is_not_tried_again(
    place: GridPlace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    calls: list[str] = []

    def write(self: LocalFolder, name: str, data: bytes) -> None:
        calls.append(name)
        raise error

    monkeypatch.setattr(LocalFolder, "write", write)
    with pytest.raises(HostError, match="is out of reach"):
        run_task(task(0), place, replay=True)
    assert len(calls) == 1


def test_a_place_out_of_reach_is_tried_again(place: GridPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = LocalFolder.write, [3]

    def write(self: LocalFolder, name: str, data: bytes) -> None:
        if name.endswith(".parquet") and failures[0]:
            failures[0] -= 1
            raise OSError(errno.EIO, "the network is down")
        original(self, name, data)

    monkeypatch.setattr(task_claim, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(LocalFolder, "write", write)
    assert run_task(task(0), place, replay=True).state == "done"
    failures[0] = 10**6
    with pytest.raises(HostError, match=r"place is out of reach: OSError$"):
        run_task(task(1), place, replay=True, patience=0.01)


def test_a_task_without_a_correct_candidate_fails(place: GridPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_grid.install(monkeypatch, recorded_grid.recorded(0, is_broken=True))
    ending = run_task(task(0), place, replay=True)
    assert (ending.state, ending.trials) == ("failed", {"wrong_result": CONFIGS})
    assert "no config is valid and correct" in ending.message


def test_a_host_without_the_device_is_not_the_tasks_fault(place: GridPlace) -> None:
    with pytest.raises(HostError, match="no GPU is visible"):
        run_task(task(0), place)
    assert place.records() == ([], [])


def test_an_interrupted_task_keeps_what_it_has(place: GridPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3, KeyboardInterrupt())
        assert run_task(task(0), place, replay=True).state == "interrupted"
    assert len(rows(place)) == 3
    assert run_task(task(0), place, replay=True).state == "done"


def test_a_damaged_part_is_measured_again(place: GridPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3, StoppedError())
        with pytest.raises(StoppedError):
            run_task(task(0), place, replay=True)
    first = place.folder.list("tables")[0]
    place.folder.write(first, b"PAR1")
    with pytest.warns(RuntimeWarning, match="damaged"):
        ending = run_task(task(0), place, replay=True)
    assert sum(ending.trials.values()) == CONFIGS - 2


def test_hosts_of_another_power_cap_or_toolchain_share_no_rows(
    place: GridPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They resume nothing from each other, and each has winners of its own."""
    run_task(task(0), place, replay=True)
    recorded_grid.install(monkeypatch, recorded_grid.recorded(0, CAPPED))
    capped = run_task(task(0, seed=1), place, replay=True)
    newer = [replace(row, toolchain=replace(row.toolchain, triton="3.7.0")) for row in recorded_grid.recorded(0)]
    recorded_grid.install(monkeypatch, newer)
    other = run_task(task(0, seed=2), place, replay=True)
    assert [sum(each.trials.values()) for each in (capped, other)] == [CONFIGS, CONFIGS]
    attempts = place.records()[0]
    assert len({(each.power_cap_watts, each.toolchain) for each in attempts}) == 3
    for row in rows(place):
        assert not (row.device == CAPPED and row.toolchain.triton == "3.7.0")
    races = {(row.race_id, row.device, row.toolchain) for row in rows(place) if row.race_id}
    assert len(races) == len({race_id for race_id, *_ in races}) == 3
    assert len(distinct(rows(place))) == len(rows(place))


def test_a_trial_that_two_attempts_acknowledged_counts_once() -> None:
    first = recorded_grid.recorded(0)
    later = [replace(row, worker="other:1", number=row.number + 99, race_id=f"{row.race_id}-2") for row in first]
    assert distinct([*later, *first]) == distinct(first)
    assert {fingerprint(row) for row in later} == {fingerprint(row) for row in first}
