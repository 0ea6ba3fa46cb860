"""The comparison of the paged operations: whose winners it measures, which of them were searched, and in which turn."""

import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel, reload
from autotune.table import Store
from benchmarks import paged
from benchmarks.paged import PARTS, ROUNDS, rungs, take_turns
from benchmarks.shipped_problems import LLAMA, mixed_shape, paged_shape, prefill_shape
from benchmarks.user_tables import tables_in
from tests import sample

HOME: Final = "AUTOTUNE_HOME"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's empty folder, on an H200."""
    monkeypatch.setenv(HOME, str(tmp_path))
    monkeypatch.setattr(platforms, "current_index", lambda: 0)
    monkeypatch.setattr(platforms, "current_device", lambda index=None: NVIDIA_H200)
    reload()
    yield tmp_path
    monkeypatch.undo()
    reload()


def test_winners_are_those_that_ship_whatever_the_user_has_tuned(home: Path) -> None:
    with tables_in():
        shipped = get_kernel(sample.shape(1024), among=("triton",))
    assert (shipped.provenance.rung, shipped.provenance.origin) == ("exact", "shipped")
    tuned = sample.config(BLOCK_K=32)
    assert shipped.config != tuned
    Store(home).append([sample.trial(sample.shape(1024), tuned)])
    reload()
    assert get_kernel(sample.shape(1024), among=("triton",)).config == tuned
    with tables_in():
        assert get_kernel(sample.shape(1024), among=("triton",)).config == shipped.config
    assert os.environ[HOME] == str(home)
    assert get_kernel(sample.shape(1024), among=("triton",)).config == tuned


def test_what_was_not_searched_is_seen(home: Path) -> None:
    searched = {name: rungs(get_kernel(shape)) for rows in PARTS.values() for name, shape in rows}
    assert {name for name, rung in searched.items() if rung != "exact"} == {"32/8, uniform of that total"}
    rows = paged_shape(LLAMA, 63, max(paged.MIXED_CONTEXTS), mean_context=statistics.mean(paged.MIXED_CONTEXTS))
    kernels = [get_kernel(shape) for shape in (mixed_shape(), rows, prefill_shape(0))]
    # Chunks are served by the implementation that is faster at like shapes, whose winners were not recorded.
    assert rungs(*kernels) == "exact, nearest, default"


def test_each_takes_its_turn_and_the_median_of_its_times_counts() -> None:
    times = {"one": iter([3.0, 100.0, 4.0]), "two": iter([8.0, 1.0, 7.0])}
    turns = []

    def timer(name: str) -> float:
        turns.append(name)
        return next(times[name])

    assert take_turns([lambda: timer("one"), lambda: timer("two")]) == [4.0, 7.0]
    assert turns == ["one", "two"] * ROUNDS
