"""Searches over synthetic operations, and what they left in a store."""

from typing import Any

from autotune.operation import Operation
from autotune.search import Limits, SearchResult, search
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Stage, Status, Trial
from tests.search.synthetic import OPERATION, SHAPE, SMALL, FakeExecutor, valid

SPACE = valid(SMALL)
FAILURES = [status for status in Status if status is not Status.OK]


def run(
    executor: FakeExecutor,
    store: Store,
    operation: Operation[Any] = OPERATION,
    *,
    trials: int | None = 12,
    seconds: float | None = None,
    converge: bool = False,
    **options: Any,
) -> SearchResult:
    return search(operation, SHAPE, executor, store, limits=Limits(trials, seconds, converge), **options)


def rows(store: Store, stage: Stage, operation: Operation[Any] = OPERATION) -> list[Trial]:
    return [trial for trial in store.trials(operation.name) if trial.stage is stage]


def winner_of(result: SearchResult) -> Config:
    assert result.winner is not None
    return result.winner.config
