"""The regret of drawn shapes, on sweeps that are replayed: the sweep itself says what it has to be."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from autotune import dispatch
from autotune.device import NVIDIA_H200
from autotune.dispatch import Provenance, Rung
from autotune.dispatch.evidence import Expectation
from autotune.executor.replay import ReplayExecutor
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.search import Limits, search
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape, Shape
from autotune.space import Config
from autotune.table import Store, write_portfolio
from autotune.trial import Candidate, Conditions, Stage, Status, Trial, median_us
from autotune.tuning.beginnings import find_heuristics, find_neighbours
from benchmarks import drawn_regret, served_regret
from benchmarks.drawn_regret import Decided, UntunedPick, decide, measure_all, summarize, summarize_expected
from tests import sample

OPERATION: Final = get_operation("flash_attention")
SHAPES: Final = [sample.shape(64), sample.shape(128)]
H100: Final = replace(NVIDIA_H200, name="NVIDIA H100 80GB HBM3", memory_mib=81559)
MEMBER: Final = sample.config(BLOCK_Q=64, BLOCK_K=32, num_warps=4, num_stages=4)


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Tables of this test alone, which have no portfolio yet."""
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    monkeypatch.setattr(drawn_regret, "search", partial(search, sampler="random"))
    monkeypatch.setattr(drawn_regret, "Limits", partial(Limits, trials=8))
    monkeypatch.setattr(drawn_regret, "find_neighbours", near)
    dispatch.reload()
    yield tmp_path / "results"
    dispatch.reload()


def near(implementation: object, shape: AttentionShape, device: object, *, measures: bool) -> list[Config]:
    assert measures
    return [best_of(sample.sweep(shape))]


@pytest.fixture
def recorded() -> list[Trial]:
    return [row for shape in SHAPES for row in sample.sweep(shape)]


def best_of(rows: list[Trial]) -> Config:
    """A neighbour's winner that is the best here, so that a short search has it, too."""
    return min((row for row in rows if row.timing), key=median_us).config


def picks(only_other_device: bool = False) -> list[UntunedPick]:
    return [drawn_regret.pick(OPERATION, shape, NVIDIA_H200, only_other_device=only_other_device) for shape in SHAPES]


def times(recorded: list[Trial], pick: UntunedPick) -> dict[Config, float]:
    """The time of each config in the sweep of the pick's shape."""
    return {t.config: t.timing.median_us for t in recorded if t.shape == pick.shape and t.timing is not None}


def run(recorded: list[Trial], store: Store, wanted: list[UntunedPick], **options: Any) -> list[Decided]:
    executor = ReplayExecutor(NVIDIA_H200, recorded)
    lines: list[str] = []
    found = measure_all(OPERATION, wanted, executor, store, **{"seconds": 60.0, "say": lines.append, **options})
    assert lines == list(map(str, found))
    return found


def test_the_regret_of_what_is_served_is_the_one_that_the_sweep_says(tmp_path: Path, recorded: list[Trial]) -> None:
    found = run(recorded, Store(tmp_path / "store"), picks())
    assert [each.pick.shape for each in found] == SHAPES
    for each in found:
        known = times(recorded, each.pick)
        assert isinstance(each.pick.shape, AttentionShape)
        default = IMPLEMENTATION.space.default(each.pick.shape, NVIDIA_H200)
        assert each.pick.candidate == Candidate("triton", default)
        assert each.regret == pytest.approx(known[default] / min(known.values()) - 1.0, abs=1e-9)
        assert each.regret > 0.01
        assert each.best is not None
        assert known[each.best.config] == min(known.values())


def test_a_second_run_goes_on_with_what_is_left(
    tmp_path: Path, recorded: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    assert run(recorded, store, picks(), deadline=time.monotonic() + 1.0, seconds=60.0) == []
    first = run(recorded, store, picks()[:1])
    searched: list[Shape] = []
    kept = drawn_regret.measure

    def noting(operation: Operation[Any], pick: UntunedPick, *rest: Any, **options: Any) -> Any:
        searched.append(pick.shape)
        return kept(operation, pick, *rest, **options)

    monkeypatch.setattr(drawn_regret, "measure", noting)
    both = run(recorded, store, picks())
    assert both[0] == first[0]
    assert searched == SHAPES[1:]
    assert run(recorded, store, picks()) == both
    assert len(searched) == 1


def test_what_other_devices_recorded_is_served_and_only_raced_where_the_search_is_known(
    results: Path, tmp_path: Path, recorded: list[Trial]
) -> None:
    store, shape = Store(tmp_path / "store"), SHAPES[0]
    best = best_of(sample.sweep(shape))
    rows = [sample.assignment(shape, best), sample.assignment(sample.shape(512), MEMBER, device=H100)]
    write_portfolio(rows, results=results)
    dispatch.reload()
    (own, *_), (other, *_) = picks(), picks(only_other_device=True)
    assert (own.candidate.config, other.candidate.config) == (best, MEMBER)
    assert [each.regret for each in run(recorded, store, [own])] == [0.0]
    before = len(store.trials("flash_attention"))
    (found,) = run(recorded, store, [other])
    known = times(recorded, other)
    assert found.regret == pytest.approx(known[MEMBER] / known[best] - 1.0, abs=1e-9)
    assert found.regret > 0.0
    screened = [row for row in store.trials("flash_attention")[before:] if row.stage is Stage.SCREEN]
    assert [row.config for row in screened] == [MEMBER]
    assert [each.regret for each in run(recorded, store, [own])] == [0.0]


def test_a_search_begins_as_that_of_the_command_does(
    results: Path, tmp_path: Path, recorded: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the portfolio's members and the winners of like shapes, and what people write by hand in the race."""
    shape, begun = SHAPES[1], list[dict[str, Any]]()

    def noting(*rest: Any, **options: Any) -> Any:
        begun.append(options)
        return search(*rest, **{**options, "sampler": "random"})

    monkeypatch.setattr(drawn_regret, "find_neighbours", find_neighbours)
    monkeypatch.setattr(drawn_regret, "search", noting)
    write_portfolio([sample.assignment(sample.shape(512), MEMBER, device=H100)], results=results)
    dispatch.reload()
    store = Store(tmp_path / "store")
    run(recorded, store, picks()[1:])
    assert MEMBER in begun[0]["neighbours"]["triton"]
    by_hand = find_heuristics([IMPLEMENTATION], shape, NVIDIA_H200)
    assert by_hand["triton"]
    raced = {row.config for row in store.trials("flash_attention") if row.stage is Stage.RACE}
    assert set(by_hand["triton"]) <= raced


def _row(number: int, config: Config, us: float | None, **changes: Any) -> Trial:
    timing = None if us is None else sample.timing(us)
    return sample.trial(SHAPES[0], config, number=number, timing=timing, **changes)


def test_the_newest_undisturbed_race_decides_and_a_failure_is_a_verdict() -> None:
    pick = UntunedPick(SHAPES[0], Candidate("triton", MEMBER), Provenance("default", ""))
    contended = Conditions(contended=True)
    older = [_row(1, MEMBER, 110.0, race_id="race-1"), _row(2, sample.FAST, 100.0, race_id="race-1")]
    newer = [_row(3, MEMBER, 102.0, race_id="race-2"), _row(4, sample.FAST, 100.0, race_id="race-2")]
    disturbed = [
        _row(5, MEMBER, 300.0, race_id="race-3"),
        _row(6, sample.FAST, 100.0, race_id="race-3", conditions=contended),
    ]
    without = [_row(7, sample.FAST, 90.0, race_id="race-4")]
    decided = decide([*older, *newer, *disturbed, *without], pick)
    assert decided is not None
    assert decided.regret == pytest.approx(0.02)
    assert decide([*without, *disturbed], pick) is None
    assert decide(older, replace(pick, shape=SHAPES[1])) is None
    failed = _row(8, MEMBER, None, stage=Stage.SCREEN, race_id="", status=Status.WRONG_RESULT)
    assert decide([*without, failed], pick) == Decided(pick, math.inf)
    lost = _row(9, MEMBER, None, stage=Stage.SCREEN, race_id="", status=Status.WORKER_DIED)
    assert decide([*without, lost], pick) is None


def _decided(*regrets: float, rung: Rung = "default") -> list[Decided]:
    expected = Provenance(rung, "", expectation=Expectation((0.01, 8)))
    return [Decided(UntunedPick(SHAPES[0], Candidate("triton", MEMBER), expected), regret) for regret in regrets]


@pytest.mark.parametrize(
    ("regrets", "only_other", "is_met"),
    [
        ([0.01] * 58 + [0.09, 0.5], False, True),
        ([0.01] * 56 + [0.09] * 4, False, False),
        ([0.03] * 31 + [0.0] * 29, False, False),
        ([0.03] * 31 + [0.5] * 29, True, True),
        ([0.05] * 31 + [0.0] * 29, True, False),
        ([0.0] * 59, False, False),
        ([], False, False),
    ],
    ids=["within", "tail", "median", "others within", "others beyond", "one is left", "all are left"],
)
def test_the_limits(regrets: list[float], only_other: bool, is_met: bool) -> None:
    lines, met = summarize(_decided(*regrets), 60, only_other_device=only_other)
    assert met is is_met
    assert lines[0].startswith(f"decided  {len(regrets)} of 60 shapes")


def test_the_summary_says_how_often_what_was_expected_came_true() -> None:
    lines, _ = summarize(_decided(0.0, 0.03, 0.05), 3, only_other_device=False)
    assert lines == [
        "decided  3 of 3 shapes",
        "regret   median 3.0%, 95th percentile 5.0%, worst 5.0%; wanted at most 2% and 8%",
        "expected known for 3 of 3 without a row of their own, within 3 points for 2",
    ]


def test_what_was_served_its_own_row_says_nothing_of_what_is_expected() -> None:
    found = [*_decided(0.5), *_decided(*[0.01] * 20, rung="exact")]
    lines, met = summarize_expected(found, 21, only_other_device=False)
    assert lines[-1] == "expected known for 1 of 1 without a row of their own, within 3 points for 0"
    assert not met
    assert summarize_expected([*_decided(*[0.01] * 9), *found[:1]], 10, only_other_device=False)[1]


def test_the_command_lists_the_shapes_and_needs_a_gpu_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served_regret.main(["--drawn", "3", "--seed", "7", "--list"])
    listed = capsys.readouterr().out.splitlines()
    assert len(set(listed)) == 3
    sample.hide_gpu(monkeypatch)
    with pytest.raises(SystemExit, match="no GPU is visible"):
        served_regret.main(["--drawn", "3"])
    with pytest.raises(SystemExit, match="no shapes are drawn of it"):
        served_regret.main(["--drawn", "3", "--operation", "paged_prefill"])
