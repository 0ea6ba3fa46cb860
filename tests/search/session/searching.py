"""Searches over synthetic operations, and what they left in a store."""

from typing import Any

from autotune.implementation import Implementation
from autotune.registry import get_operation
from autotune.search import Limits, SearchResult, search
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Stage, Status, Trial
from tests.search.synthetic import LARGE, SHAPE, SMALL, FakeExecutor, valid

SPACE = valid(SMALL)
FAILURES = [status for status in Status if status is not Status.OK]


def run(
    executor: FakeExecutor,
    store: Store,
    implementation: Implementation[Any] = LARGE,
    *,
    trials: int | None = 12,
    seconds: float | None = None,
    converge: bool = False,
    **options: Any,
) -> SearchResult:
    operation, limits = get_operation(implementation.operation), Limits(trials, seconds, converge)
    return search(operation, SHAPE, executor, store, limits=limits, implementations=[implementation], **options)


def rows(store: Store, stage: Stage, implementation: Implementation[Any] = LARGE) -> list[Trial]:
    return [trial for trial in store.trials(implementation.operation) if trial.stage is stage]


def winner_of(result: SearchResult) -> Config:
    assert result.winner is not None
    return result.winner.config
