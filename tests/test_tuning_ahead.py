"""While one shape is searched, what the next search begins with is compiled; nothing of that search changes by it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import dispatch
from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.search import Limits, search
from autotune.search.proposals import AHEAD
from autotune.shape import Shape
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Candidate, PriorPick
from autotune.tuning import Tuning, shape_searches, tune, tuner
from autotune.tuning.beginnings import Beginnings, first_candidates
from autotune.tuning.workloads import Answer
from tests import sample
from tests.search.synthetic import LINE, PAIR, SHAPE, SYNTHETIC_PAIR, VALLEY, FakeExecutor, default, valid

TRIALS = 20
SHAPES = [sample.shape(each) for each in (64, 128, 256)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    dispatch.reload()
    yield tmp_path / "home"
    dispatch.reload()


class Gpu(FakeExecutor):
    """Notes what is opened, and how many problems were expected by then."""

    def __init__(self) -> None:
        super().__init__(capacity=AHEAD, time_us=lambda config: 100.0 + config.integer("BLOCK_K"))
        self.opened: list[tuple[Shape, int]] = []

    def open(self, operation: Any, shape: Shape) -> None:
        super().open(operation, shape)
        self.opened.append((shape, len(self.later)))


def tune_on(gpu: FakeExecutor, monkeypatch: pytest.MonkeyPatch, shapes: Any) -> Tuning:
    monkeypatch.setattr(tuner, "open_executor", lambda *_: gpu)
    return tune(shapes, implementations="triton", sampler="random", trials=TRIALS, budget=None)


def test_a_search_has_the_next_one_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()
    found = tune_on(gpu, monkeypatch, [*SHAPES[:2], SHAPES[0], SHAPES[2]])  # a shape that is named twice has one search
    assert found.failures == ()
    assert gpu.opened == [(SHAPES[0], 1), (SHAPES[1], 2), (SHAPES[2], 2)]
    assert [shape for shape, _ in gpu.later] == SHAPES[1:]
    for number, (_, expected) in enumerate(gpu.later, start=1):
        assert 1 <= len(expected) <= AHEAD
        assert gpu.candidates[TRIALS * number] == expected[0]


def test_what_goes_wrong_ahead_changes_nothing(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    tune_on(quiet := Gpu(), monkeypatch, SHAPES)
    for each in home.rglob("*.parquet"):
        each.unlink()
    dispatch.reload()

    def fail(*_: Any) -> Any:
        raise TableError("a damaged table")

    monkeypatch.setattr(shape_searches, "first_candidates", fail)
    found = tune_on(gpu := Gpu(), monkeypatch, SHAPES)
    assert (found.failures, gpu.later) == ((), [])
    assert (gpu.candidates, gpu.raced) == (quiet.candidates, quiet.raced)


def test_a_replay_compiles_nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu := Gpu(), "name", "replay")
    monkeypatch.setattr(shape_searches, "confirm", lambda *_: None)
    monkeypatch.setattr(shape_searches, "first_candidates", lambda *_: [sample.candidate()])
    assert tune_on(gpu, monkeypatch, SHAPES).failures == ()
    assert gpu.later == []


@pytest.mark.parametrize("of", PAIR, ids=lambda each: each.name)
def test_first_is_what_a_search_asks_for_first(of: Any, tmp_path: Path) -> None:
    configs = {each.name: valid(each) for each in PAIR}
    too_large = Config(BLOCK_Q=256, BLOCK_K=128, loads="pointer")
    served = PriorPick(Candidate(of.name, configs[of.name][-1]), "exact", 0.0, 1)
    beginnings = Beginnings(
        served=served,
        defaults={each.name: configs[each.name][0] for each in PAIR},
        neighbours={VALLEY.name: [too_large, *configs[VALLEY.name][1:4]], LINE.name: configs[LINE.name][:2]},
        heuristics={VALLEY.name: [], LINE.name: configs[LINE.name][4:5]},
    )
    first = list(first_candidates(Answer(SYNTHETIC_PAIR, SHAPE, SHAPE, PAIR), NVIDIA_H200, beginnings))
    executor = FakeExecutor()
    search(
        SYNTHETIC_PAIR,
        SHAPE,
        executor,
        Store(tmp_path / "store"),
        limits=Limits(16, None),
        implementations=PAIR,
        served=served,
        defaults=beginnings.defaults,
        neighbours=beginnings.neighbours,
        heuristics=beginnings.heuristics,
    )
    for each in PAIR:
        asked = [candidate for candidate in executor.candidates if candidate.implementation == each.name]
        ahead = [candidate for candidate in first if candidate.implementation == each.name]
        assert Candidate(each.name, default(each)) in ahead
        assert asked[: len(ahead)] == ahead
    assert [each.implementation for each in first[:4]] == [VALLEY.name, LINE.name] * 2
