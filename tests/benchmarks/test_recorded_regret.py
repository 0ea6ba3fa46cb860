"""Recorded shapes that are left out: their times, and what is served without them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import Provenance, alternatives_for
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import shipped_grid
from autotune.trial import Candidate, Stage
from benchmarks import recorded_regret, served_regret
from benchmarks.drawn_regret import Decided, UntunedPick
from benchmarks.recorded_shapes import RecordedShape
from tests import sample

GLUON: Final = Config(consumers=2)
SHAPE: Final = sample.shape()


def recorded(ratios: dict[Config, float], races: dict[str, float]) -> RecordedShape:
    return RecordedShape(
        shape=SHAPE,
        device=NVIDIA_H200,
        ratios=ratios,
        default=sample.FAST,
        source_hash="",
        triton="3.6.0",
        races=races,
        newest_race=max(races, default=""),
    )


def test_times_are_over_the_best_of_all_implementations_that_met_in_a_race() -> None:
    ours = recorded({sample.FAST: 1.0, sample.config(num_stages=4): 1.5}, {"b": 120.0, "a": 90.0})
    other = recorded({GLUON: 1.0}, {"b": 100.0})
    (times,) = recorded_regret.recorded_times({"triton": [ours], "gluon_hopper": [other]}).values()
    assert times == {
        Candidate("triton", sample.FAST): pytest.approx(1.2),
        Candidate("triton", sample.config(num_stages=4)): pytest.approx(1.8),
        Candidate("gluon_hopper", GLUON): pytest.approx(1.0),
    }


def test_implementations_that_never_met_are_not_compared() -> None:
    ours, other = recorded({sample.FAST: 1.0}, {"a": 90.0}), recorded({GLUON: 1.0}, {"b": 100.0})
    assert not recorded_regret.recorded_times({"triton": [ours], "gluon_hopper": [other]})
    elsewhere = replace(other, shape=sample.shape(512))
    assert len(recorded_regret.recorded_times({"triton": [ours], "gluon_hopper": [elsewhere]})) == 2


def test_what_the_others_serve_takes_as_long_as_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the newest race of the shape in the tables that ship, with other code than the benchmark reads it by."""
    asked: list[AttentionShape] = []

    def serve(shape: Any, device: Any, rows: Sequence[Any], *rest: Any, portfolio: Sequence[Any]) -> Any:
        asked.append(shape)
        assert rows
        assert portfolio
        assert all(each.trial.shape != shape for each in rows)
        assert all(row.shape != shape and row.device.arch == device.arch for row in portfolio)
        return alternatives_for(shape, device, rows, *rest, portfolio=portfolio)

    monkeypatch.setattr(recorded_regret, "alternatives_for", serve)
    found = list(recorded_regret.leave_out_each("flash_attention_varlen"))
    assert len(found) == len(asked) >= 20
    decided = [(device, each) for device, each in found if each is not None]
    assert len(decided) >= 0.8 * len(found)
    assert all(each.rung != "exact" and each.regret >= 0.0 for _, each in decided)
    grid = shipped_grid("flash_attention_varlen")
    ratios = {}
    for device, each in decided:
        of_shape = [row for row in grid if (row.shape, row.device, row.stage) == (each.pick.shape, device, Stage.RACE)]
        newest = max(row.race_id for row in of_shape)
        times = {row.candidate: row.timing.median_us for row in of_shape if row.race_id == newest and row.timing}
        if each.pick.candidate in times and each.best in times:
            ratios[each.pick.shape] = times[each.pick.candidate] / times[each.best] - 1.0
    assert len(ratios) >= 20
    regrets = {each.pick.shape: each.regret for _, each in decided if each.pick.shape in ratios}
    assert regrets == {shape: pytest.approx(ratio, abs=1e-6) for shape, ratio in ratios.items()}


@pytest.mark.parametrize(("lost", "expected"), [(0.25, 1.2 * 1.25), (None, None)])
def test_a_fitted_default_counts_as_fitted_without_the_shape(
    lost: float | None, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the best of its own implementation, which may not be the best of all."""
    monkeypatch.setattr(recorded_regret, "is_fitted", lambda implementation, shape: True)
    monkeypatch.setattr(recorded_regret, "left_out_loss", lambda implementation, shape, device: lost)
    default = Candidate("triton", IMPLEMENTATION.space.default(SHAPE, NVIDIA_H200))
    other = Candidate("triton", sample.config(num_stages=5))
    times = {default: 1.2, other: 1.3, Candidate("gluon_hopper", GLUON): 1.0}
    assert recorded_regret._time_of(default, [IMPLEMENTATION], SHAPE, NVIDIA_H200, times) == expected
    assert recorded_regret._time_of(other, [IMPLEMENTATION], SHAPE, NVIDIA_H200, times) == 1.3


@pytest.mark.parametrize(
    ("regrets", "code"), [([0.0, 0.01, 0.05], 0), ([0.03, 0.03, 0.0], 1), ([0.0, 0.01, 0.09], 1), ([None], 0)], ids=str
)
def test_the_command_prints_what_is_lost_and_fails_beyond_the_limits(
    regrets: list[float | None], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picked = UntunedPick(SHAPE, sample.candidate(), Provenance("default", "of a test"))
    every = [None if regret is None else Decided(picked, regret) for regret in regrets]
    monkeypatch.setattr(served_regret, "leave_out_each", lambda *_: ((NVIDIA_H200, each) for each in every))
    with pytest.raises(SystemExit) as ended:
        served_regret.main(["--recorded"])
    assert ended.value.code == code
    printed = capsys.readouterr().out
    known = [regret for regret in regrets if regret is not None]
    assert f"timed    {len(known)} of {len(regrets)} shapes" in printed
    assert printed.count(str(SHAPE)) == sum(regret > 0.02 for regret in known)
    assert ("regret   median" in printed) == bool(known)
