"""Which config is next: the default first, then the neighbours, none twice, and the same for one seed."""

from pathlib import Path

import pytest

from autotune.search import SAMPLERS, Sampler
from autotune.search.proposals import AHEAD
from autotune.space import Config
from autotune.table import Store
from tests.search.session.searching import SPACE, run
from tests.search.synthetic import LARGE, SMALL, FakeExecutor, default, valid


def test_the_default_comes_first_and_then_the_neighbours(store: Store) -> None:
    neighbours = valid(LARGE)[100:103]
    invalid = Config({**default(LARGE), "BLOCK_Q": 256, "BLOCK_K": 256})
    executor = FakeExecutor()
    run(executor, store, neighbours={"valley": [invalid, default(LARGE), *neighbours, neighbours[0]]})
    assert executor.submitted[:4] == [default(LARGE), *neighbours]
    assert invalid not in executor.submitted


@pytest.mark.parametrize("capacity", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_nothing_is_measured_twice(store: Store, capacity: int, sampler: Sampler) -> None:
    executor = FakeExecutor(capacity=capacity)
    result = run(executor, store, SMALL, trials=None, sampler=sampler)
    assert sorted(map(str, executor.submitted)) == sorted(map(str, SPACE))
    assert executor.submitted[0] == default(SMALL)
    assert (result.measured, result.resumed) == (len(SPACE), 0)


@pytest.mark.parametrize(("sampler", "room"), [("gp", AHEAD), ("tpe", AHEAD), ("random", 64), ("exhaustive", 64)])
@pytest.mark.slow
def test_a_sampler_that_learns_has_few_configs_in_flight(store: Store, sampler: Sampler, room: int) -> None:
    executor = FakeExecutor(capacity=64)  # a host of many cores
    run(executor, store, trials=100, sampler=sampler)
    assert executor.most_in_flight == room


def test_a_space_that_fits_the_budget_is_enumerated(store: Store) -> None:
    executor = FakeExecutor()
    run(executor, store, SMALL, trials=len(SPACE))
    assert executor.submitted[0] == default(SMALL)
    assert sorted(executor.submitted, key=SMALL.space.order) == sorted(SPACE, key=SMALL.space.order)


@pytest.mark.slow
def test_the_same_seed_tries_the_same_configs(tmp_path: Path) -> None:
    executors = [FakeExecutor() for _ in range(3)]
    for number, (executor, seed) in enumerate(zip(executors, (0, 0, 1), strict=True)):
        run(executor, Store(tmp_path / str(number)), trials=20, seed=seed)
    same, again, other = (executor.submitted for executor in executors)
    assert same == again != other
