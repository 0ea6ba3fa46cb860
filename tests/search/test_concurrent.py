"""Several processes search one study into one store at once, and another reads it all the while."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from autotune.search import Limits, search
from autotune.table import Store
from autotune.trial import Stage, Trial
from tests.search.endless import PLACE, search_in_steps
from tests.search.synthetic import LARGE, SHAPE, SYNTHETIC, FakeExecutor

STEPS = range(4, 41, 4)


@pytest.mark.slow
def test_searches_of_one_study_at_once_lose_nothing_and_readers_never_fail(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.search.endless"])
    store, seen = Store(tmp_path), set[Trial]()
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        running = [pool.submit(search_in_steps, tmp_path, STEPS, seed) for seed in (0, 1)]
        while not all(future.done() for future in running):
            found = set(store.trials(LARGE.operation))
            assert seen <= found
            seen = found
        kept = [place for future in running for place in future.result()]
    assert len(seen) > STEPS[-1]
    screened = [PLACE[trial.config] for trial in store.trials(LARGE.operation) if trial.stage is Stage.SCREEN]
    assert sorted(kept) == sorted(screened)
    executor = FakeExecutor()
    result = search(SYNTHETIC, SHAPE, executor, store, limits=Limits(trials=STEPS[-1]))
    assert (result.measured, result.interrupted) == (0, False)
    assert result.winner is not None
