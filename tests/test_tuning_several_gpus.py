"""``tune`` on several GPUs of one host, whose workers are fake: side by side, together, with one less, and Ctrl-C."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import dispatch
from autotune.errors import UsageError
from autotune.executor.gpu import GpuExecutor
from autotune.executor.settings import Settings
from autotune.executor.several_gpus import GpuUse
from autotune.search import Observer
from autotune.shape import Shape
from autotune.table import Store
from autotune.trial import Stage, Trial
from autotune.tuning import Tuning, tune
from tests import sample
from tests.executor.calm import SHAPES
from tests.executor.driving import replace_two_gpus
from tests.executor.processes import Processes, watch

CONFIGS = 10  # of the calm operation
Spoil = Callable[[int, str], None]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """The processes that the test starts; it fails if one is left at its end."""
    with watch(monkeypatch) as processes:
        yield processes


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    dispatch.reload()
    yield
    dispatch.reload()


@pytest.fixture
def spoil(tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """Two GPUs; writes what is wrong with one of them from then on."""
    return replace_two_gpus(monkeypatch, tmp_path, meet=False)


@pytest.fixture
def meeting(tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, of which both must be at work at once."""
    replace_two_gpus(monkeypatch, tmp_path, meet=True)


class Notes(Observer):
    """Notes what is told, by whom and of which GPU; acts after each trial."""

    def __init__(self, act: Callable[[int], None] = lambda index: None) -> None:
        self.threads: set[str] = set()
        self.trials: dict[int | None, list[Trial]] = {}
        self.dropped: list[tuple[int, str]] = []
        self.uses: list[GpuUse] = []
        self.act = act
        self.index: int | None = None
        self.parts: list[Notes] = []

    def of_gpu(self, index: int) -> "Notes":
        part = Notes(self.act)
        part.index, part.threads, part.trials = index, self.threads, self.trials
        self.parts.append(part)
        return part

    def on_trial(self, trial: Trial) -> None:
        self.threads.add(threading.current_thread().name)
        self.trials.setdefault(self.index, []).append(trial)
        assert self.index is not None
        self.act(self.index)

    def on_gpu_dropped(self, index: int, reason: str) -> None:
        self.dropped.append((index, reason))

    def on_gpus(self, uses: Any) -> None:
        self.uses.extend(uses)


def tune_calmly(shapes: Any, observer: Observer, **options: Any) -> Tuning:
    given = {"sampler": "exhaustive", "trials": None, "budget": None, "settings": Settings(jobs=2), "gpus": "all"}
    return tune(shapes, operation="calm", observer=observer, **{**given, **options})


def kept(tmp_path: Path) -> list[Trial]:
    return Store(tmp_path / "home").trials("calm")


def screened(tmp_path: Path) -> Counter[tuple[object, object]]:
    """Counts of the verdicts on each config of each shape."""
    return Counter((each.shape, each.config) for each in kept(tmp_path) if each.stage is Stage.SCREEN)


def test_shapes_are_searched_side_by_side(tmp_path: Path, meeting: None) -> None:
    notes = Notes()
    found = tune_calmly(SHAPES, notes)
    assert [each.asked for each in found.results] == SHAPES
    assert (found.failures, found.interrupted) == ((), False)
    assert set(screened(tmp_path).values()) == {1}
    assert len(screened(tmp_path)) == CONFIGS * len(SHAPES)
    assert notes.threads == {threading.current_thread().name}
    assert notes.trials.keys() == {0, 1}
    assert {part.index for part in notes.parts} == {0, 1}
    assert tuple(notes.uses) == found.gpus
    assert [(use.index, use.device, use.dropped) for use in found.gpus] == [
        (0, "NVIDIA H200", ""),
        (1, "NVIDIA H200", ""),
    ]
    assert all(0.0 < use.busy <= 1.0 for use in found.gpus)
    assert all(0.0 < use.starved <= 1.0 - use.busy for use in found.gpus)
    assert "GPU 1, NVIDIA H200: busy " in str(found)
    for each in found.results:
        assert each.winner is not None
        assert dispatch.get_kernel(each.shape, operation="calm", device="NVIDIA H200").provenance.rung == "exact"


def test_one_shape_is_screened_by_both_gpus_and_raced_on_one(tmp_path: Path, meeting: None) -> None:
    found = tune_calmly(SHAPES[0], Notes())
    assert found.results[0].winner is not None
    rows = kept(tmp_path)
    assert len({row.worker for row in rows if row.stage is Stage.SCREEN}) == 2
    assert len({row.worker for row in rows if row.stage is Stage.RACE}) == 1
    assert set(screened(tmp_path).values()) == {1}
    assert len(screened(tmp_path)) == CONFIGS


@pytest.mark.parametrize("word", ["shared", pytest.param("hot", marks=pytest.mark.slow)])
def test_a_disturbed_gpu_is_dropped_and_its_search_goes_on_elsewhere(tmp_path: Path, spoil: Spoil, word: str) -> None:
    spoil(1, word)
    notes = Notes()
    found = tune_calmly(SHAPES, notes)
    assert [each.failure for each in found.results] == [""] * len(SHAPES)
    assert [index for index, _ in notes.dropped] == [1]
    assert found.gpus[1].dropped == notes.dropped[0][1]
    assert found.gpus[0].dropped == ""
    assert set(screened(tmp_path).values()) == {1}  # what was acknowledged was not asked again
    assert len(screened(tmp_path)) == CONFIGS * len(SHAPES)
    assert not any(each.winner.outcome.conditions.contended for each in found.results if each.winner is not None)


@pytest.mark.slow
def test_a_gpu_that_cannot_be_opened_is_told(tmp_path: Path, spoil: Spoil) -> None:
    spoil(1, "die")
    notes = Notes()
    found = tune_calmly(SHAPES[0], notes, sampler="random", trials=1)
    assert found.results[0].winner is not None
    ((index, reason),) = notes.dropped
    assert (index, reason.partition(":")[0]) == (1, "the GPU cannot be opened")


def test_the_only_gpu_goes_on_where_it_is_disturbed(tmp_path: Path, spoil: Spoil) -> None:
    spoil(0, "shared")
    found = tune_calmly(SHAPES[0], Notes(), gpus=[0])
    assert found.results[0].winner is not None
    assert found.gpus[0].dropped == ""
    assert all(row.outcome.conditions.contended for row in kept(tmp_path))


@pytest.mark.slow
def test_the_last_gpu_goes_on_where_it_is_disturbed(tmp_path: Path, spoil: Spoil) -> None:
    for index in (0, 1):
        spoil(index, "shared")
    notes = Notes()
    found = tune_calmly(SHAPES, notes)
    assert [each.failure for each in found.results] == [""] * len(SHAPES)
    assert len(notes.dropped) == 1


def test_ctrl_c_ends_all_and_the_same_call_continues(tmp_path: Path, processes: Processes, spoil: Spoil) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    found = tune_calmly(SHAPES, Notes(interrupt))
    assert found.interrupted
    processes.wait_for(0)
    before = screened(tmp_path)
    assert 1 <= len(before) < CONFIGS * len(SHAPES)
    assert tune_calmly(SHAPES, Notes()).failures == ()
    assert set(screened(tmp_path).values()) == {1}
    assert len(screened(tmp_path)) == CONFIGS * len(SHAPES)


def note_expected(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """The shapes of later searches of which GPUs are told, in their order."""
    expected: list[Shape] = []
    expect = GpuExecutor.expect_problem

    def note(executor: GpuExecutor, operation: Any, shape: Shape, candidates: Any) -> None:
        assert candidates
        expected.append(shape)
        expect(executor, operation, shape, candidates)

    monkeypatch.setattr(GpuExecutor, "expect_problem", note)
    return expected


@pytest.mark.parametrize(("gpus", "at_once"), [([1], 1), ("all", 2)])
def test_what_is_not_searched_at_once_is_compiled_meanwhile_and_once(
    spoil: Spoil, monkeypatch: pytest.MonkeyPatch, gpus: Any, at_once: int
) -> None:
    expected = note_expected(monkeypatch)
    found = tune_calmly(SHAPES, Notes(), gpus=gpus, sampler="random", trials=2)
    assert found.failures == ()
    assert expected == SHAPES[at_once:]


def test_what_goes_back_from_a_dropped_gpu_is_not_expected_again(spoil: Spoil, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(1, "shared")
    expected = note_expected(monkeypatch)
    notes = Notes()
    assert tune_calmly(SHAPES, notes).failures == ()
    assert [index for index, _ in notes.dropped] == [1]
    assert expected == SHAPES[2:]


@pytest.mark.slow
def test_an_observers_error_ends_all(processes: Processes, spoil: Spoil) -> None:
    def fail(_: int) -> None:
        raise ValueError("no more paper")

    with pytest.raises(ValueError, match="no more paper"):
        tune_calmly(SHAPES, Notes(fail))
    processes.wait_for(0)


def test_gpus_are_refused_before_anything_is_searched(tmp_path: Path, spoil: Spoil) -> None:
    with pytest.raises(UsageError, match=r"gpus=\[7\] names 7"):
        tune_calmly(SHAPES[0], Observer(), gpus=[7])
    assert not (tmp_path / "home").exists()
