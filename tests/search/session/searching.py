"""Searches over synthetic operations, and what they left in a store."""

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.implementation import Implementation
from autotune.registry import get_operation
from autotune.search import Limits, SearchResult, opening, rotation, search, session
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


def clock(monkeypatch: pytest.MonkeyPatch, executor: FakeExecutor) -> FakeExecutor:
    """Make an executor's time that of the clock which the search reads."""
    for module in (opening, session, rotation):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: executor.elapsed))
    return executor


def rows(store: Store, stage: Stage, implementation: Implementation[Any] = LARGE) -> list[Trial]:
    return [trial for trial in store.trials(implementation.operation) if trial.stage is stage]


def winner_of(result: SearchResult) -> Config:
    assert result.winner is not None
    return result.winner.config
