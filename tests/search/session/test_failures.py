"""Failed configs are rows and end nothing; a search that can have no winner says why."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from autotune.errors import SearchError
from autotune.table import Store
from autotune.trial import Stage, Status
from tests.search.session.searching import FAILURES, SPACE, rows, run, winner_of
from tests.search.synthetic import SMALL, FakeExecutor, median_us, message


@pytest.mark.parametrize("capacity", [1, 4])
def test_every_failure_is_a_row_and_ends_nothing(store: Store, capacity: int) -> None:
    failures = dict(zip(SPACE, FAILURES, strict=False))
    result = run(FakeExecutor(failures=failures, capacity=capacity), store, SMALL, trials=None)
    screened = {trial.config: trial for trial in rows(store, Stage.SCREEN, SMALL)}
    assert list(failures.values()) == FAILURES
    for config, status in failures.items():
        row = screened[config]
        assert (row.status, row.outcome.message) == (status, message(status))
        assert (row.timing is None) == (status is not Status.SLOW)
    assert result.statuses == Counter(FAILURES) | Counter({Status.OK: len(SPACE) - len(FAILURES)})
    assert winner_of(result) == min(SPACE[len(FAILURES) :], key=median_us)


def test_without_one_correct_config_the_statuses_are_counted(store: Store) -> None:
    reasons = itertools.cycle(status for status in FAILURES if status is not Status.SLOW)
    failures = {config: next(reasons) for config in SPACE}
    executor = FakeExecutor(failures=failures)
    with pytest.raises(SearchError, match=r"^no config is valid and correct here \(.*for example: planted: ") as caught:
        run(executor, store, SMALL, trials=None)
    assert all(f"{count} {status}" in str(caught.value) for status, count in Counter(failures.values()).items())
    assert len(rows(store, Stage.SCREEN, SMALL)) == len(SPACE)
    assert executor.races == []  # nothing is left that could be raced


def test_a_space_without_a_valid_config_says_why(store: Store) -> None:
    barren = replace(SMALL, space=replace(SMALL.space, reject=lambda config, shape, device: "nothing fits"))
    with pytest.raises(SearchError, match=r"no config of .* is valid .*: nothing fits"):
        run(FakeExecutor(), store, barren)
