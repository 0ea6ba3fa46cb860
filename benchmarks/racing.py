"""Race calls on the GPU here, interleaved, each over inputs of its own that rotate past the L2."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def race_calls(runs: Mapping[str, Sequence[Callable[[], Any]]], seconds: float) -> dict[str, float]:
    """Race entrants, each a call for every set of inputs; return their medians in microseconds, by name."""
    from autotune import timing
    from autotune.trial import Policy

    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(timing.Stopwatch(list(each), Policy())) for each in runs.values()]
        found = timing.race(watches, contenders=0, seconds=seconds)
    return {name: each.median_us for name, each in zip(runs, found, strict=True)}
