"""Samples of a call's time on CPU or GPU, after a warm-up; and a time in words."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from autotune.analysis.processor import Processor
from autotune.timing import Stopwatch
from autotune.trial import Policy

Call = Callable[[], object]

SAMPLES: Final = 15  # on a GPU, of at least 0.4 ms each
MIN_SAMPLES, MAX_SAMPLES = 3, 30  # on a CPU
CPU_SECONDS: Final = 0.5  # after which a CPU's samples are enough
MIN_SAMPLE_SECONDS: Final = 1e-3  # a CPU's sample repeats the calls until it is so long


def sample_times(calls: Sequence[Call], processor: Processor) -> list[float]:
    """Microseconds of one call, in samples; ``calls`` rotate over inputs, so that none is found in a cache.

    On a GPU a CUDA graph replays them (``autotune.timing``). On a CPU torch's threads are left as they are.
    """
    if processor.kind == "cuda":
        with Stopwatch(calls, Policy()) as stopwatch:
            stopwatch.warm_up()
            return [stopwatch.sample() for _ in range(SAMPLES)]
    return _cpu_times(calls)


def time_text(microseconds: float) -> str:
    """A time in the unit that reads best, as ``autotune bench`` prints its medians.

    Example:
        >>> time_text(127936.5), time_text(84.2)
        ('127.936 ms', '84.2 us')
    """
    unit, scale, digits = unit_of(microseconds)
    return f"{microseconds / scale:.{digits}f} {unit}"


def unit_of(microseconds: float) -> tuple[str, float, int]:
    """The unit that a time reads best in, its microseconds, and how many digits follow the point."""
    return ("ms", 1000.0, 3) if microseconds >= 1000.0 else ("us", 1.0, 1)


def _cpu_times(calls: Sequence[Call]) -> list[float]:
    for call in calls:
        call()
    first = _seconds(calls, 1)
    repeats = max(1, round(MIN_SAMPLE_SECONDS / max(first, 1e-9)))
    samples: list[float] = []
    deadline = time.perf_counter() + CPU_SECONDS
    while len(samples) < MIN_SAMPLES or (len(samples) < MAX_SAMPLES and time.perf_counter() < deadline):
        samples.append(_seconds(calls, repeats) / repeats / len(calls) * 1e6)
    return samples


def _seconds(calls: Sequence[Call], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        for call in calls:
            call()
    return time.perf_counter() - start
