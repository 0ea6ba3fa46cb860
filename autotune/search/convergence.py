"""A rule that ends a study: more trials are not worth their time."""

import math
from collections.abc import Iterable
from typing import Final

from autotune.trial import Outcome, Status

SHARE: Final = 0.25  # of the valid configs; how far from the optimum searches are then: docs/search-efficiency.md
# Configs; well above those in flight (proposals.AHEAD), which were asked for before the last gain was known.
PATIENCE: Final = 30
WORTHWHILE: Final = 0.01


class Convergence:
    """Reached when a quarter of the valid configs was tried, and the last 30 did not make the best 1 % faster.

    Args:
        past: outcomes of earlier runs, in the order in which they came.
        valid: the number of valid configs.
    """

    def __init__(self, past: Iterable[Outcome], valid: int) -> None:
        self._tried, self._last_gain, self._gained_us = 0, 0, math.inf  # the last: the best when the last gain came
        self._share = SHARE * valid
        for outcome in past:
            self.note(outcome)

    @property
    def is_reached(self) -> bool:
        return self._tried >= self._share and self._tried - self._last_gain >= PATIENCE

    def note(self, outcome: Outcome) -> None:
        """Learn of one more config."""
        self._tried += 1
        if outcome.status is Status.OK and outcome.timing is not None:
            median_us = outcome.timing.median_us
            if median_us < (1.0 - WORTHWHILE) * self._gained_us:
                self._last_gain, self._gained_us = self._tried, median_us
