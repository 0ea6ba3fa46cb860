"""Shapes that are served far from the best: by what is expected, by what races near by say, and where nothing does."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from autotune import dispatch
from autotune.device import NVIDIA_H200
from autotune.registry import get_operation
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import Store, write_portfolio
from autotune.trial import Candidate, Conditions, Policy, Trial
from autotune.tuning import find_sparse
from autotune.workload import Workload
from tests import sample

OPERATION: Final = get_operation("flash_attention")
MEMBER: Final = sample.config(BLOCK_Q=64, BLOCK_K=64, num_warps=4)
LENGTHS: Final = (512, 1024, 2048, 4096)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A portfolio that has ``MEMBER`` for everything causal, of which 8 % were lost where it was left out."""
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    monkeypatch.setattr("autotune.dispatch.evidence.installed_version", lambda package: sample.TOOLCHAIN.triton)
    rows = [sample.assignment(sample.shape(seq), MEMBER, left_out_regret=0.08) for seq in LENGTHS]
    write_portfolio(rows, results=tmp_path / "results")
    dispatch.reload()
    yield tmp_path / "home"
    dispatch.reload()


def work(*shapes: AttentionShape) -> list[Workload]:
    return [(OPERATION, shape) for shape in shapes]


def race(shape: AttentionShape, served: float, config: Config = MEMBER, **changes: Any) -> list[Trial]:
    """A race in which a config took so many microseconds, and the best 100."""
    return [
        sample.trial(shape, chosen, number=number, timing=sample.timing(us), **changes)
        for number, (chosen, us) in enumerate(((config, served), (sample.FAST, 100.0)))
    ]


def test_what_is_expected_near_the_best_is_left_alone() -> None:
    shape = sample.shape(1024)
    (found,) = find_sparse(work(shape), NVIDIA_H200, sample.TOOLCHAIN)
    assert (found.shape, found.served, found.rung) == (shape, Candidate("triton", MEMBER), "default")
    assert found.expected == pytest.approx(0.08)
    assert (found.measured, found.regret) == (None, found.expected)
    assert find_sparse(work(shape), NVIDIA_H200, sample.TOOLCHAIN, above=0.09) == []


def test_a_tuned_shape_is_near_the_best(home: Path) -> None:
    Store(home).append([sample.trial(sample.shape(1024))])
    dispatch.reload()
    assert find_sparse(work(sample.shape(1024)), NVIDIA_H200, sample.TOOLCHAIN) == []


def test_the_race_of_the_nearest_shape_counts_where_it_has_what_is_served() -> None:
    shape, near, far = sample.shape(1024, batch=8), sample.shape(1024, batch=9), sample.shape(1024, batch=32)
    rows = [*race(near, 130.0), *race(far, 190.0)]
    (found,) = find_sparse(work(shape), NVIDIA_H200, sample.TOOLCHAIN, rows)
    assert found.measured == pytest.approx(0.3)
    assert (found.measured_at, found.regret) == (near, found.measured)
    (beyond,) = find_sparse(work(shape), NVIDIA_H200, sample.TOOLCHAIN, race(far, 190.0))
    assert (beyond.measured, beyond.measured_at) == (None, None)
    other = sample.config(BLOCK_Q=64, BLOCK_K=32, num_warps=4)
    (unlike,) = find_sparse(work(shape), NVIDIA_H200, sample.TOOLCHAIN, race(near, 190.0, other))
    assert unlike.measured is None


def test_the_newest_undisturbed_race_of_this_device_counts() -> None:
    shape, near = sample.shape(1024, batch=8), sample.shape(1024, batch=9)
    rows = [
        *race(near, 150.0, race_id="race-1"),
        *race(near, 120.0, race_id="race-2"),
        *race(near, 170.0, race_id="race-3", conditions=Conditions(contended=True)),
        *race(near, 180.0, race_id="race-4", device=replace(NVIDIA_H200, name="NVIDIA H100")),
        *race(near, 185.0, race_id="race-5", policy=Policy("eager", "warm")),
        *race(near, 190.0, race_id="race-6", executor="replay"),
    ]
    (found,) = find_sparse(work(shape), NVIDIA_H200, sample.TOOLCHAIN, rows)
    assert found.measured == pytest.approx(0.2)


@pytest.mark.parametrize(
    "stale",
    [
        {"source_hash": "another"},
        {"toolchain": replace(sample.TOOLCHAIN, triton="3.5.0")},
        {"toolchain": replace(sample.TOOLCHAIN, ptxas="12.0")},
    ],
    ids=["source", "triton", "ptxas"],
)
def test_a_race_of_kernels_that_no_longer_exist_is_no_measurement(stale: dict[str, Any]) -> None:
    shape, near = sample.shape(1024, batch=8), sample.shape(1024, batch=9)
    newer = race(near, 190.0, race_id="race-2", **stale)
    (found,) = find_sparse(work(shape), NVIDIA_H200, sample.TOOLCHAIN, newer)
    assert found.measured is None
    (found,) = find_sparse(work(shape), NVIDIA_H200, sample.TOOLCHAIN, [*race(near, 130.0, race_id="race-1"), *newer])
    assert found.measured == pytest.approx(0.3)
    other = replace(sample.TOOLCHAIN, driver="590.0", torch="2.14.0")  # which compile nothing of ours
    assert find_sparse(work(shape), NVIDIA_H200, other, race(near, 130.0))[0].measured == pytest.approx(0.3)


def test_the_most_costly_come_first_and_behind_them_those_of_which_nothing_is_known() -> None:
    unknown = sample.shape(1024, head_dim=64)
    high, low = sample.shape(1024, batch=8), sample.shape(2048, batch=64)
    found = find_sparse(
        work(unknown, low, high, low), NVIDIA_H200, sample.TOOLCHAIN, race(sample.shape(1024, batch=9), 130.0)
    )
    assert [each.shape for each in found] == [high, low, unknown]
    assert [each.regret is None for each in found] == [False, False, True]
