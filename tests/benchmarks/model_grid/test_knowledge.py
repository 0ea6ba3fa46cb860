"""Knowledge grows while the grid is recorded: the configs to try first, and where a search pays."""

from pathlib import Path

import pytest

from autotune.likeness import likeness
from benchmarks.model_grid.knowledge import ENOUGH, FIRST, Knowledge, neighbours
from tests import sample
from tests.benchmarks.model_grid.fake_gpu import DENSE, GOOD, H100, Gpu, cells, dense, recording

pytestmark = pytest.mark.usefixtures("nothing_ranked")


def test_a_search_goes_on_only_where_it_paid(gpu: Gpu, tmp_path: Path) -> None:
    made = recording(gpu, tmp_path)
    assert made.record(cells(6))
    gains = made.part(DENSE.title).knowledge.gains
    assert gains[0][1] > 0.03
    knowledge = Knowledge(DENSE, H100)
    assert knowledge.is_search_worth(cells()[0].shape)
    for cell in cells(ENOUGH):
        knowledge.note_gain(cell.shape, 0.0)
    assert not knowledge.is_search_worth(cells(4)[3].shape)
    assert knowledge.is_search_worth(dense(4096, head_dim=64))  # of another class
    for cell in cells(ENOUGH):
        knowledge.note_gain(cell.shape, 0.2)
    assert knowledge.is_search_worth(cells(4)[3].shape)


def test_the_first_configs_are_the_defaults_members_winners_and_neighbours(gpu: Gpu) -> None:
    shape = cells()[2].shape
    knowledge = Knowledge(DENSE, H100)
    alone = knowledge.first(shape)
    space = DENSE.space
    assert alone[0] == space.default(shape, H100)
    assert set(space.heuristics(shape, H100)) <= set(alone)
    knowledge.learn([sample.sweep(sample.shape(seq)) for seq in (1024, 4096)])
    found = knowledge.first(shape)
    assert sample.FAST in found
    assert len(found) == FIRST == len(set(found))
    assert set(found) & set(neighbours(space, sample.FAST, shape, H100))
    assert all(space.why_invalid(config, shape, H100) is None for config in found)
    other = dense(2048, dtype="float32")  # a class in which nothing is recorded
    assert all(space.why_invalid(config, other, H100) is None for config in knowledge.first(other))
    assert likeness(other, H100).kind != likeness(shape, H100).kind


def test_neighbours_differ_in_one_parameter_by_one_step() -> None:
    shape = cells()[2].shape
    order = DENSE.space.order
    found = neighbours(DENSE.space, GOOD, shape, H100)
    assert found
    for config in found:
        assert sum(abs(a - b) for a, b in zip(order(config), order(GOOD), strict=True)) == 1
