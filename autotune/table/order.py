"""The order of trials, and their union: a total order, so that equal sets of rows give equal bytes."""

import itertools
from collections.abc import Iterable
from typing import Any

from autotune.trial import Trial


def in_order(trials: Iterable[Trial]) -> list[Trial]:
    """Return trials without duplicates, oldest first; the order depends on nothing but the set."""

    def age(trial: Trial) -> tuple[Any, ...]:
        return (trial.started_at, trial.study, trial.number)

    groups = (list(twins) for _, twins in itertools.groupby(sorted(trials, key=age), key=age))
    return [
        trial for twins in groups for trial in (sorted(dict.fromkeys(twins), key=repr) if len(twins) > 1 else twins)
    ]
