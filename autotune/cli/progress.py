"""What a search shows while it runs: a live line on a terminal, plain lines elsewhere."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autotune.operation import Operation
from autotune.report.summary import status_text
from autotune.search import Limits
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Status, Trial

PLAIN_EVERY = 10  # trials between two plain lines, where nothing better was found


class Progress:
    """Implements ``autotune.search.Observer`` on a console.

    Args:
        console: where it is shown.
        limits: those of the search; their seconds are counted down.
        started: ``time.monotonic()`` at which the budget began to run; when the search says that it starts by default.
    """

    def __init__(self, console: Console, limits: Limits, started: float | None = None) -> None:
        self._console = console
        self._limits = limits
        self._budget_began = started
        self._live: Live | None = None
        self._reset()

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _reset(self) -> None:
        self._started = time.monotonic() if self._budget_began is None else self._budget_began
        self._counts: Counter[Status] = Counter()
        self._best: Trial | None = None
        self._known = 0

    def on_start(
        self, operation: Operation[Any], shape: Shape, *, space: int, resumed: int, best: Trial | None
    ) -> None:
        self._reset()
        self._known, self._best = resumed, best
        configs = "1 valid config" if space == 1 else f"{space} valid configs"
        again = f", {resumed} known from an earlier run; best {self._best_text()}" if resumed else ""
        self._console.print(f"{operation.name}: {shape}\n{configs}{again}")

    def on_trial(self, trial: Trial) -> None:
        self._counts[trial.status] += 1
        better = self._is_better(trial)
        if better:
            self._best = trial
        if self._live is not None:
            self._live.update(Text(self._line()))
        elif better or sum(self._counts.values()) % PLAIN_EVERY == 0:
            self._console.print(self._line())

    def on_race(self, configs: Sequence[Config]) -> None:
        finalists = "1 finalist" if len(configs) == 1 else f"{len(configs)} finalists, the default among them,"
        text = f"racing {finalists} against the fastest baseline"
        if self._live is not None:
            self._live.update(Text(text))
        else:
            self._console.print(text)

    def _is_better(self, trial: Trial) -> bool:
        if trial.status is not Status.OK or trial.timing is None:
            return False
        if self._best is None or self._best.timing is None:
            return True
        return trial.timing.median_us < self._best.timing.median_us

    def _line(self) -> str:
        done = self._known + sum(self._counts.values())
        trials = "1 trial" if done == 1 else f"{done} trials"
        known = f"{self._known} known, " if self._known else ""
        return f"{trials} ({known}{status_text(self._counts)}){self._left()}; best {self._best_text()}"

    def _best_text(self) -> str:
        if self._best is None or self._best.timing is None:
            return "none yet"
        return f"{self._best.timing.median_us:.1f} us, {self._best.config}"

    def _left(self) -> str:
        if self._limits.seconds is None:
            return ""
        return f", {max(0.0, self._limits.seconds - (time.monotonic() - self._started)):.0f} s left"
