"""The points of the named models, and the shares of them that are served near the best and as expected."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import dispatch
from autotune.device import NVIDIA_H200
from autotune.errors import UsageError
from autotune.registry import get_operation
from autotune.shape import AttentionShape
from autotune.table import Store, as_expected, home, served_regrets
from autotune.trial import Trial
from autotune.tuning import is_measurable
from benchmarks import drawn_regret, expected_regret
from tests import sample


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    dispatch.reload()
    yield tmp_path / "results"
    dispatch.reload()


def test_the_points_are_as_many_as_were_measured() -> None:
    found = expected_regret.points()
    assert {name: len(shapes) for name, shapes in found.items()} == {"flash_attention": 1620, "paged_decode": 1332}
    for name, shapes in found.items():
        assert all(get_operation(name).unsupported(shape) is None for shape in shapes)


def raced(number: int, expected: float | None, regret: float, **changes: Any) -> Trial:
    """The winner of a race in which what was served took so much longer."""
    served = {"served_rung": "default", "served_timing": sample.timing(100 * (1 + regret))}
    told = {"expected_regret": expected, "evidence": 3, "race_id": f"race-{number}"}
    return sample.trial(sample.shape(64 * number), timing=sample.timing(100.0), **{**served, **told, **changes})


def test_what_was_expected_and_what_was_measured_are_compared_in_points() -> None:
    rows = [
        raced(1, 0.01, 0.039),
        raced(2, 0.01, 0.05),
        raced(3, 0.05, 0.01),
        raced(4, 0.04, 0.04),
        raced(5, None, 0.5),
        raced(6, 0.01, 0.0, served_rung="exact"),
    ]
    assert as_expected(served_regrets(rows)) == (2, 4)


def test_only_what_has_evidence_and_is_near_counts(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.dispatch.evidence.installed_version", lambda package: sample.TOOLCHAIN.triton)
    Store(results.parent / "home").append([sample.trial(sample.shape(1024))])
    dispatch.reload()
    shapes = [sample.shape(1024), sample.shape(1024), sample.shape(1024, head_dim=64), sample.shape(2048)]
    found = expected_regret.count_points("flash_attention", shapes, NVIDIA_H200.name)
    assert (found.count, found.near, found.unknown) == (4, 2, 2)
    assert found.rungs == {"exact": 2, "default": 2}
    assert found.share == 0.5
    assert str(found).startswith(
        " 50.0%  flash_attention on an NVIDIA H200: 2 of 4 points expected within 5% of the best"
    )


def test_the_command_fails_below_what_is_wanted(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(expected_regret, "points", lambda: {"flash_attention": [sample.shape(1024)]})
    store = Store(tmp_path / "store")
    for number in range(1, 11):
        store.append([raced(number, 0.01, 0.0 if number < 10 else 0.2)])
    store.append([raced(11, 0.01, 0.9, executor="replay")])
    with pytest.raises(SystemExit, match="wanted 95% of points, and 90% of races as expected"):
        expected_regret.main(["--store", str(tmp_path / "store")])
    assert " 90.0%  of 10 races: expected within 3 points" in capsys.readouterr().out
    monkeypatch.setattr(expected_regret, "WANTED", 0.0)
    expected_regret.main(["--store", str(tmp_path / "store")])
    store.append([raced(12, 0.01, 0.2)])
    with pytest.raises(SystemExit):
        expected_regret.main(["--store", str(tmp_path / "store")])
    assert home() == tmp_path / "home"  # the user's tables stand again
    with pytest.raises(SystemExit, match="no folder: /nonexistent"):
        expected_regret.main(["--store", "/nonexistent"])


def test_points_to_measure_are_drawn_by_a_seed_and_can_be_tuned() -> None:
    operation = get_operation("flash_attention")
    drawn = drawn_regret.draw(operation, None, 40, 2)
    assert drawn == drawn_regret.draw(operation, None, 40, 2)
    assert len(set(drawn)) == 40
    assert set(drawn) <= set(expected_regret.points()["flash_attention"])
    assert all(isinstance(each, AttentionShape) and is_measurable(operation, each, memory_mib=81559) for each in drawn)


@pytest.mark.parametrize("points", [0, 10**6])
def test_a_number_of_points_that_there_are_not_is_refused(points: int) -> None:
    with pytest.raises(
        UsageError, match=f"points={points} is not allowed; expected 1 or more, and flash_attention has"
    ):
        drawn_regret.draw(get_operation("flash_attention"), None, points, 0)
