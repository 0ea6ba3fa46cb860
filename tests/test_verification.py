"""``verify`` by replay: the regret that the sweep itself says, of what is served before anything is stored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import dispatch
from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.errors import MissingDependencyError
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import Store, served_regrets, write_shipped
from autotune.trial import Stage, Status, Trial
from autotune.tuning import nearest_rank, shape_searches, tune, verify
from tests import sample
from tests.test_tuning import confirm_at_once

SHAPES = [sample.shape(64), sample.shape(96, batch=256)]  # the second would be served the winner of the first
QUICK: dict[str, Any] = {"trials": 6, "sampler": "random", "budget": None}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine without a GPU, with two recorded shapes, and a compiler and interpreter that agree at once."""
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    sample.hide_gpu(monkeypatch)
    monkeypatch.setattr(shape_searches, "confirm", confirm_at_once)
    for shape in SHAPES:
        path = Path(f"nvidia_h200/flash_attention/sweeps/triton_{shape.seq_q}.parquet")
        write_shipped(path, sample.sweep(shape), results=tmp_path / "results")
    dispatch.reload()
    yield tmp_path / "home"
    dispatch.reload()


def recorded_us(shape: AttentionShape, config: Config) -> float:
    return next(t.timing.median_us for t in sample.sweep(shape) if t.config == config and t.timing is not None)


def raced(home: Path, shape: AttentionShape) -> list[Trial]:
    return [t for t in Store(home).trials("flash_attention") if t.shape == shape and t.stage is Stage.RACE]


def test_the_regret_is_that_of_the_sweep_for_what_was_served_before(home: Path) -> None:
    defaults = [IMPLEMENTATION.space.default(shape, NVIDIA_H200) for shape in SHAPES]
    found = verify(SHAPES, **QUICK)
    assert [each.tuned.asked for each in found.results] == SHAPES
    for shape, default, each in zip(SHAPES, defaults, found.results, strict=True):
        assert each.measured is not None
        assert each.measured.served is not None
        assert (each.measured.rung, each.measured.served.config) == ("default", default)
        best = min(recorded_us(shape, row.config) for row in raced(home, shape))
        assert each.regret == pytest.approx(recorded_us(shape, default) / best - 1.0)
        assert each.failure == ""
    assert served_regrets(Store(home).trials("flash_attention")) == list(found.measured)
    assert {get_kernel(shape, device="NVIDIA H200").provenance.rung for shape in SHAPES} == {"exact"}


def test_a_second_call_answers_from_what_is_stored() -> None:
    first = verify(SHAPES[:1], **QUICK)
    again = verify(SHAPES, **QUICK)
    assert again.measured[0] == first.measured[0]
    assert again.results[0].tuned.search is not None
    assert again.results[0].tuned.search.measured == 0
    assert again.measured[1].rung == "nearest"  # the first is tuned already


def test_a_stored_winner_is_what_is_served_even_if_its_race_said_nothing_of_it(home: Path) -> None:
    tune(SHAPES[0], **QUICK)  # in a replay, whose race has nothing that was served
    assert {row.served_rung for row in raced(home, SHAPES[0])} == {None}
    (found,) = verify(SHAPES[0], **QUICK).measured
    assert (found.rung, found.regret) == ("exact", 0.0)
    assert found.served == found.winner.candidate


def test_no_recorded_shape_stands_for_one_that_was_asked(home: Path) -> None:
    """The regret at another shape is not that of the asked one, whose kernel may be another, too."""
    near = sample.shape(80)
    found = verify([near, *SHAPES], **QUICK)
    assert [each.tuned.asked for each in found.results] == [near, *SHAPES]
    assert [each.tuned.shape for each in found.results] == [near, *SHAPES]
    (failed,) = found.failures
    assert failed.regret is None
    assert failed.failure.startswith(f"no sweep of {near} is recorded, so what is served for it can be judged on a GPU")
    assert [each.winner.shape for each in found.measured] == SHAPES
    assert raced(home, near) == []
    with pytest.raises(
        MissingDependencyError, match="the nearest that is recorded is batch 256, 16 heads of 128, seq 64"
    ):
        verify(sample.shape(64, batch=200), **QUICK)


def test_what_is_served_and_fails_is_a_failure_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    default = IMPLEMENTATION.space.default(SHAPES[0], NVIDIA_H200)

    def broken(trial: Trial) -> Trial:
        if trial.config != default:
            return trial
        return sample.trial(
            SHAPES[0],
            default,
            status=Status.WRONG_RESULT,
            message="off by 3",
            timing=None,
            stage=Stage.SCREEN,
            race_id="",
        )

    rows = list(dict.fromkeys(map(broken, sample.sweep(SHAPES[0]))))
    path = Path("nvidia_h200/flash_attention/sweeps/triton_64.parquet")
    write_shipped(path, rows, results=tmp_path / "results")
    found = verify(SHAPES[0], **QUICK)
    assert found.results[0].regret is None
    assert found.failures == found.results
    assert found.results[0].failure == f"what was served (triton {default}) failed: wrong_result off by 3"
    assert "failed: what was served" in str(found)


def test_a_result_reads_well() -> None:
    text = str(verify(SHAPES[0], **QUICK))
    assert text.startswith(f"flash_attention: {SHAPES[0]}\n  served (default) ")
    assert text.endswith("% slower than the best; nothing was expected")


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert nearest_rank(range(1, 61), 0.5) == 30
    assert nearest_rank(range(1, 61), 0.95) == 57
    assert nearest_rank([7.0], 0.95) == 7.0
    assert nearest_rank([], 0.5) != nearest_rank([], 0.5)
