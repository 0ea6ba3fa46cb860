"""The benchmark of many GPUs: its grid, the judge of a winner that was not in the race, what is kept and missed."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.executor import Race, is_comparison
from autotune.executor.gpu import GpuExecutor
from autotune.executor.several_gpus import GpuUse
from autotune.grid import GridPlace
from autotune.grid.task_runner import run_task
from autotune.registry import get_operation
from autotune.trial import Candidate, Outcome, Status
from autotune.tuning.workloads import find_implementations
from benchmarks.many_gpus import __main__ as many_gpus
from benchmarks.many_gpus.__main__ import Found, counts, measure, misses, print_runs, wanted_runs
from benchmarks.many_gpus.on_ray import read_studies
from benchmarks.many_gpus.ties import is_inside, ties_in_race
from benchmarks.many_gpus.tuned_grid import GridRun, Study, grid, this_host
from tests import sample
from tests.grid import recorded_grid

FAST, NEAR, SLOW = (sample.candidate(sample.config(BLOCK_Q=q)) for q in (64, 128, 256))
UNTIMED, CLEARLY, VAGUE = (sample.candidate(sample.config(BLOCK_Q=q)) for q in (16, 32, 512))
TIMES = {
    FAST: sample.timing(100.0),
    NEAR: sample.timing(100.4),
    CLEARLY: sample.timing(100.9, 0.001),
    VAGUE: sample.timing(101.5, 0.05),
    SLOW: sample.timing(120.0),
}


class FakeExecutor:
    """Races by what each candidate takes."""

    def race(self, candidates: Sequence[Candidate], *, seconds: float, baselines: list[str]) -> Race:
        assert is_comparison(baselines)  # else its seconds are spent on compiling
        timed = [(each, TIMES.get(each)) for each in candidates]
        return Race(
            tuple(
                Outcome(candidate=each, status=Status.WRONG_RESULT, message="off")
                if timing is None
                else Outcome(candidate=each, status=Status.OK, timing=timing)
                for each, timing in timed
            )
        )


def test_the_grid_is_of_eight_shapes_of_each_operation_that_one_of_ours_supports() -> None:
    names = [operation.name for operation, _ in grid()]
    assert (names.count("flash_attention"), names.count("paged_decode"), len(set(grid()))) == (8, 8, 16)
    for operation, shape in grid():
        assert find_implementations(operation, shape, NVIDIA_H200)


@pytest.mark.parametrize(
    ("ties", "rival", "expected"),
    [
        ([FAST], NEAR, True),
        ([FAST, NEAR], SLOW, False),
        ([SLOW], FAST, True),
        ([FAST], UNTIMED, False),
        ([UNTIMED], SLOW, False),
        ([FAST], CLEARLY, False),  # within 1 %, and told apart
        ([FAST], VAGUE, False),  # not told apart, and beyond 1 %
    ],
)
def test_a_rival_is_judged_by_the_fastest_of_the_ties(ties: list[Candidate], rival: Candidate, expected: bool) -> None:
    assert ties_in_race(cast(GpuExecutor, FakeExecutor()), ties, rival) is expected


WORK: Final = (get_operation("flash_attention"), sample.shape())
OPTIONS: Final = {"trials": 40, "budget": 40.0}
USE: Final = GpuUse(0, "NVIDIA H200", 0.8, 0.1)
ONE: Final = GridRun(this_host(), 300.0, 0.5, 900.0, (USE,), (Study(FAST, 100.0, (FAST, NEAR), 40),) * 16)
TWO: Final = replace(
    ONE, seconds=155.0, gpus=(USE, replace(USE, index=1, busy=0.7)), studies=(Study(NEAR, 100.4, (NEAR,), 39),) * 16
)


def test_a_winner_among_the_ties_needs_no_race() -> None:
    executor = cast(GpuExecutor, None)
    found = Study(FAST, 100.0, (FAST, NEAR))
    assert is_inside(WORK, found, Study(NEAR), executor)
    assert not is_inside(WORK, Study(None), Study(NEAR), executor)
    assert not is_inside(WORK, found, Study(None), executor)


def test_numbers_of_gpus_double_up_to_all() -> None:
    assert [counts(gpus) for gpus in (2, 3, 4, 8)] == [[1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 8]]


def test_runs_and_verdicts_are_kept_and_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results" / "many_gpus.json"
    found = Found(path, OPTIONS)
    found.runs |= {"1": ONE, "2": TWO, "2 by Ray": replace(TWO, gpus=(), cores_busy=None)}
    assert len(found.left()) == 32
    found.inside["2"] = [True] * 15 + [None]
    found.keep()
    again = Found(path, OPTIONS)
    assert again.runs == found.runs
    assert [each for each in again.left() if each[0] == "2"] == [("2", 15)]
    print_runs(again)
    row = "| 2 | 155.0 | 1.935 | 70% to 80% | 10% to 10% | 50% | 0.9 GB | 624 | 15 of 16 | 1.004 |"
    assert row in capsys.readouterr().out
    assert json.loads(path.read_text())["options"] == OPTIONS
    with pytest.raises(SystemExit, match="name another"):
        Found(path, {**OPTIONS, "trials": 5})


def test_a_kill_while_runs_are_kept_leaves_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "many_gpus.json"
    found = Found(path, OPTIONS)
    found.runs["1"] = ONE
    found.keep()
    before = path.read_bytes()
    found.runs["2"] = TWO

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            found.keep()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


DAMAGED = (
    *("", '{"opt', "[]", "{}", '{"options": {}, "runs": {"1": {}}, "inside": {}}'),
    *('{"options": {}, "runs": {}, "inside": []}', '{"options": {}, "runs": {}, "inside": {"2": 5}}'),
)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_of_runs_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "many_gpus.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match=r"many_gpus\.json is damaged: .*; move it away to begin anew"):
        Found(path, OPTIONS)


def test_misses_are_named(tmp_path: Path) -> None:
    found = Found(tmp_path / "many_gpus.json", OPTIONS)
    found.runs, found.inside = {"1": ONE, "2": TWO}, {"2": [True] * 16}
    assert misses(found) == []
    slow = replace(TWO, seconds=200.0, gpus=(USE, replace(USE, index=1, busy=0.5)))
    found.runs |= {"2": slow, "4": slow}
    found.inside = {"2": [False] * 16, "4": [True] * 16}
    assert misses(found) == [
        "the speed-up of 2 GPUs is 1.500, not 1.85",
        "0 winners of 2 tie with those of one GPU, not 15",
        "GPU 1 of 2 is busy 50.0% of the time, not 60%",
        "the speed-up of 4 GPUs is 1.500, not 3.5",
    ]
    fewer = (replace(TWO.studies[0], measured=0), Study(None, failure="no GPU is left"), *TWO.studies[2:])
    found.runs, found.inside = {"1": ONE, "2": replace(TWO, studies=fewer)}, {"2": [True] * 16}
    assert misses(found) == [
        "1 studies of 2 have no winner, the first: no GPU is left",
        "2 measured 546 configs, one GPU 640",
    ]
    found.runs, found.inside = {"1": ONE, "1 again": slow}, {"1 again": [False] * 16}
    assert misses(found) == []
    found.inside = {"4": [True] * 16}
    found.runs = {"1": ONE, "4": replace(ONE, seconds=80.0, gpus=(replace(USE, dropped="it is shared"),))}
    assert misses(found) == ["GPU 0 of 4 was dropped: it is shared"]


def test_verdicts_on_fewer_winners_are_damaged(tmp_path: Path) -> None:
    found = Found(tmp_path / "many_gpus.json", OPTIONS)
    found.runs, found.inside = {"1": ONE, "2": TWO}, {"2": [True] * 15}
    found.keep()
    with pytest.raises(SystemExit, match="no verdicts on 16 winners"):
        Found(tmp_path / "many_gpus.json", OPTIONS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "1"], "--gpus=1 is not allowed; expected 2 or more"),
        (["--trials", "0"], "--trials=0 is not allowed; expected 1 or more"),
        (["--budget", "nan"], "--budget=nan is not allowed; expected more than 2 seconds"),
        (["--budget", "2"], "--budget=2.0 is not allowed; expected more than 2 seconds"),
        (["--only", "7"], "--only='7' is not allowed; expected one of 1, 2, 2 by Ray, or '1 again' with --again"),
        (["--results", "/proc/none"], "--results='/proc/none' cannot be written: "),
    ],
    ids=str,
)
def test_arguments_are_judged_before_a_gpu_is_asked_for(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        many_gpus.main(["--results", str(tmp_path), *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def run_two(*, trials: int) -> GridRun:
    return replace(TWO, seconds=float(trials))


def test_missing_runs_are_done_in_processes_of_their_own_on_one_host(tmp_path: Path) -> None:
    assert list(wanted_runs(4, with_ray=True)) == ["1", "2", "4", "4 by Ray"]
    assert list(wanted_runs(2, with_ray=False, again=True)) == ["1", "2", "1 again"]
    found = Found(tmp_path / "many_gpus.json", OPTIONS)
    found.runs["1"] = ONE
    measure(found, {"1": run_two, "2": run_two}, trials=7)
    assert (found.runs["1"], found.runs["2"].seconds) == (ONE, 7.0)
    assert Found(tmp_path / "many_gpus.json", OPTIONS).runs == found.runs
    found.runs["1"] = replace(ONE, host="another, 8 cores")
    measure(found, {"1": run_two}, trials=7)  # nothing is missing
    with pytest.raises(SystemExit, match="another, 8 cores"):
        measure(found, {"4": run_two}, trials=7)


def test_some_runs_are_done_alone_and_judged_once_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[list[str]] = []

    def do(found: Found, wanted: Mapping[str, object], **options: object) -> None:
        done.append([name for name in wanted if name not in found.runs])
        found.runs |= dict.fromkeys(done[-1], ONE)
        found.keep()

    def judge(found: Found) -> None:
        done.append(["judged"])
        found.inside = {name: [True] * 16 for name in found.runs}

    for name, replacement in (("require_gpu", lambda name: None), ("measure", do), ("judge", judge)):
        monkeypatch.setattr(many_gpus, name, replacement)
    monkeypatch.setattr(platforms, "gpu_count", lambda: 2)
    command = ["--gpus=2", "--no-ray", "--again", f"--results={tmp_path}"]
    many_gpus.main([*command, "--only=1 again"])
    assert capsys.readouterr().out == "missing   1, 2: the same command without --only goes on there\n"
    with pytest.raises(SystemExit, match=r"^1$"):  # two GPUs take as long as one
        many_gpus.main(command)
    assert done == [["1 again"], ["1", "2"], ["judged"]]
    monkeypatch.setattr(platforms, "gpu_count", lambda: 1)
    command[-1] += "/of one"
    many_gpus.main([*command, "--only=1"])
    with pytest.raises(SystemExit, match="--gpus=2 needs 2 GPUs, and 1 are visible"):
        many_gpus.main([*command, "--only=2"])


def test_winners_of_a_place_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_grid.install(monkeypatch)
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    operation, place = get_operation(recorded_grid.NAME), tmp_path / "place"
    run_task(recorded_grid.task(3), GridPlace(place), replay=True)
    found, missing = read_studies([(operation, recorded_grid.shape(study)) for study in (3, 4)], place)
    winner = found.winner
    assert winner is not None
    assert found.median_us == recorded_grid.median_us(3, winner.implementation, winner.config.integer("STEP"))
    assert missing == Study(None, failure="no winner is at the place")
