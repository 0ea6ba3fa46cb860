"""Samples of a call's time on a CPU or a GPU, after a warm-up."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from autotune.lab.machine.processor import Processor
from autotune.timing import Stopwatch
from autotune.trial import Policy

TimedCall = Callable[[], object]

SAMPLES: Final = 15  # on a GPU, of at least 0.4 ms each
MIN_SAMPLES, MAX_SAMPLES = 3, 30  # on a CPU
CPU_SECONDS: Final = 0.5  # after which a CPU's samples are enough
MIN_SAMPLE_SECONDS: Final = 1e-3  # a CPU's sample repeats the calls until it is so long


def sample_times(calls: Sequence[TimedCall], processor: Processor) -> list[float]:
    """Time one call and return samples in microseconds; ``calls`` rotate over inputs, so that none is found in a cache.

    On a GPU a CUDA graph replays them (``autotune.timing``). On a CPU torch's threads are left as they are.
    """
    if processor.kind == "cuda":
        with Stopwatch(calls, Policy()) as stopwatch:
            stopwatch.warm_up()
            return [stopwatch.sample() for _ in range(SAMPLES)]
    return _cpu_times(calls)


def _cpu_times(calls: Sequence[TimedCall]) -> list[float]:
    for call in calls:
        call()
    first = _seconds(calls, 1)
    repeats = max(1, round(MIN_SAMPLE_SECONDS / max(first, 1e-9)))
    samples: list[float] = []
    deadline = time.perf_counter() + CPU_SECONDS
    while len(samples) < MIN_SAMPLES or (len(samples) < MAX_SAMPLES and time.perf_counter() < deadline):
        samples.append(_seconds(calls, repeats) / repeats / len(calls) * 1e6)
    return samples


def _seconds(calls: Sequence[TimedCall], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        for call in calls:
            call()
    return time.perf_counter() - start
