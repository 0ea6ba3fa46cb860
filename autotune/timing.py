"""Measurement of times: graph replay over rotating inputs, medians, bootstrap intervals, interleaved races."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from autotune.platforms import platform_here
from autotune.trial import Policy, Timing

Launch = Callable[[], object]

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 1000
MIN_REPLAY_US: Final = 400.0  # a sample must dwarf the ~1 us resolution of events
MAX_LED_US: Final = 5000.0  # a longer sample hardly depends on what ran before it
MAX_WARMUP_SECONDS: Final = 0.2
MIN_ROUNDS: Final = 15  # of a race: fewer samples separate nothing
STEADY: Final = 0.01  # consecutive samples within 1 %: clocks and caches have settled
FAR: Final = 2.0  # times the limit of a screening: so far behind that one rough pass is proof enough
# A launch; a shorter one may have been spent in Python, issuing it: with 200 us, configs of paged decode of 4 to 90 us
# were given up as taking 200 us more (427 of 1,853 trials of its grid; NVIDIA H200, 2026-11-23).
MIN_ROUGH_US: Final = 1000.0
MIN_ROUGH: Final = 2  # launches of a rough pass
TIE: Final = 0.01  # medians closer than this are a tie whatever their intervals (docs/measuring.md)


def summarize(samples: Sequence[float], *, seed: int = 0) -> Timing:
    """Return the median of samples in microseconds with a percentile-bootstrap confidence interval (Efron 1979).

    Example:
        >>> summarize([2.0, 1.0, 3.0]).median_us
        2.0
    """
    values = np.asarray(samples, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(values), size=(RESAMPLES, len(values)))
    medians = np.median(values[drawn], axis=1)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(medians, (tail, 1.0 - tail))
    return Timing(float(np.median(values)), float(low), float(high), len(values))


class Stopwatch:
    """Times one thing on the current GPU: each sample is one replay of a sequence of launches.

    ``launches`` rotate over input sets (one launch a set); under the policy ``eager`` they are issued from Python
    instead of a captured graph. A short replay is timed behind one that is not, so that neither earlier work of the GPU
    (whose writes the L2 still holds) nor the start of a graph is in it. Graphs that are replayed one after another and
    whose results are not read may share a ``pool`` of memory (``torch.cuda.graph_pool_handle()``). ``rough_us`` is the
    least time of a launch in a first pass, cold and issued from Python. Use as a context manager: the graph's memory is
    given back at the end.
    """

    def __init__(self, launches: Sequence[Launch], policy: Policy, pool: Any = None) -> None:
        self._platform = platform_here()
        self._replay: Launch | None = None
        self._policy = policy
        self._pool = pool
        self._is_long_enough = False
        self._has_lead = False
        self._launches = list(launches)
        for launch in self._launches[:2]:  # compile and load before anything is timed or captured
            launch()
        self._platform.synchronize()
        # The least: where compilers take all of a container's share of the cores, Python stands still for tens of
        # milliseconds at a time. By the mean of a pass, 107 of 904 configs of shapes whose best takes up to 100 us were
        # given up as taking 1 to 8 ms, what was served among them (NVIDIA H200, 2026-11-27; slow rows of one sample, of
        # the drawn shapes that the shipped grid has).
        rounds = math.ceil(MIN_ROUGH / len(self._launches))
        self.rough_us = min(self._platform.measure_each_us(self._launches * rounds))

    def __enter__(self) -> "Stopwatch":
        return self

    def __exit__(self, *_: object) -> None:
        self._replay = None
        self._launches = []

    def sample(self) -> float:
        """Return the microseconds a launch, over one replay."""
        if self._has_lead:
            self._work()
        return self._platform.measure_us(self._work) / len(self._launches)

    def warm_up(self) -> float:
        """Replay until consecutive samples agree, or for a fifth of a second; return the last sample."""
        if not self._is_long_enough:
            self._lengthen()
        deadline = time.monotonic() + MAX_WARMUP_SECONDS
        last = self.sample()
        while time.monotonic() < deadline:
            now = self.sample()
            if abs(now - last) <= STEADY * last:
                return now
            last = now
        return last

    def _lengthen(self) -> None:
        """Repeat the launches until a sample is long enough to be timed, and capture them."""
        taken = self.rough_us * len(self._launches)
        while not self._is_long_enough:
            self._launches *= max(1, math.ceil(MIN_REPLAY_US / max(taken, 1.0)))
            if self._policy.mode == "graph":
                # Not freed before the next one is captured: torch takes no pool whose last graph is gone.
                self._replay = self._platform.capture(self._issue, self._pool)
            taken = self._platform.measure_us(self._work)  # the first pass may have been spent in Python
            self._is_long_enough = taken >= MIN_REPLAY_US
        self._has_lead = self._replay is not None and taken < MAX_LED_US

    def _work(self) -> None:
        (self._replay or self._issue)()

    def _issue(self) -> None:
        for launch in self._launches:
            launch()


class ClockStopwatch:
    """Times a call on the CPU by the clock; as ``Stopwatch``, each sample repeats it until it is long enough."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._repeats = 1
        self._repeats = max(1, math.ceil(MIN_REPLAY_US / max(self.sample(), 1.0)))

    def sample(self) -> float:
        """Return the microseconds a call."""
        started = time.perf_counter()
        for _ in range(self._repeats):
            self._call()
        return (time.perf_counter() - started) * 1e6 / self._repeats

    def warm_up(self) -> float:
        """Call once more; the first call was made beforehand."""
        return self.sample()


def screen(stopwatch: Stopwatch, *, give_up_us: float, samples: int = 7) -> tuple[Timing, bool]:
    """Take a short measurement; return it, and True if it was cut short for being slower than ``give_up_us``.

    A far slower launch is not even captured: the rough pass says its time. Of the rest the median of three samples
    decides, since a single one may be an outlier, and a slow one is never measured again.
    """
    rough = stopwatch.rough_us
    if rough > max(FAR * give_up_us, MIN_ROUGH_US):
        return summarize([rough]), True
    first = stopwatch.warm_up()
    if first > give_up_us:
        few = summarize([first, stopwatch.sample(), stopwatch.sample()])
        if few.median_us > give_up_us:
            return few, True
    return summarize([stopwatch.sample() for _ in range(samples)]), False


def race(
    stopwatches: Sequence[Stopwatch | ClockStopwatch],
    *,
    contenders: int,
    seconds: float,
    on_turn: Callable[[int], object] = lambda index: None,
    min_rounds: int = MIN_ROUNDS,
    max_rounds: int = 100,
) -> list[Timing]:
    """Measure all round-robin until the fastest contender stands out, or the time or the rounds end.

    ``min_rounds`` are run whatever the time, since fewer samples separate nothing. The first ``contenders`` compete for
    the win; the others are baselines, which decide nothing. Without contenders the time or the rounds end it. Every
    round takes one sample of each in a rotated order, so that drift of clocks and temperature meets all alike.
    ``on_turn`` is called with the index of the stopwatch that runs next.
    """
    deadline = time.monotonic() + seconds
    samples: list[list[float]] = [[] for _ in stopwatches]
    for index, stopwatch in enumerate(stopwatches):
        on_turn(index)
        stopwatch.warm_up()
    for count in range(1, max_rounds + 1):
        for step in range(len(stopwatches)):
            index = (step + count) % len(stopwatches)
            on_turn(index)
            samples[index].append(stopwatches[index].sample())
        if count >= min_rounds and (
            time.monotonic() > deadline or (contenders > 0 and count % 5 == 0 and _is_decided(samples[:contenders]))
        ):
            break
    return [summarize(values) for values in samples]


def _is_decided(samples: Sequence[Sequence[float]]) -> bool:
    """Return True if every entry lost clearly, or is so close to the fastest that more rounds would not part them."""
    if not samples:
        return True
    timings = sorted((summarize(values) for values in samples), key=lambda timing: timing.median_us)
    fastest = timings[0]
    return all(
        not timing.overlaps(fastest) or (timing.high_us - fastest.low_us) <= TIE * fastest.median_us
        for timing in timings[1:]
    )
