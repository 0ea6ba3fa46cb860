"""How time is taken: CUDA-graph replay over rotating inputs, medians, bootstrap intervals, interleaved races."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from autotune.trial import Policy, Timing

Launch = Callable[[], object]

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 1000
MIN_REPLAY_US: Final = 400.0  # a sample must dwarf the ~1 us resolution of CUDA events
MAX_LED_US: Final = 5000.0  # what is longer hardly feels who was on the GPU before
MAX_WARMUP_SECONDS: Final = 0.2
STEADY: Final = 0.01  # consecutive samples within 1 %: clocks and caches have settled
FAR: Final = 2.0  # times the limit of a screening: so far behind that one rough pass is proof enough
MIN_ROUGH_US: Final = 200.0  # a launch; what is shorter may have been spent in Python, issuing it
TIE: Final = 0.01  # medians closer than this are a tie whatever their intervals (docs/measuring.md)


def summarize(samples: Sequence[float], *, seed: int = 0) -> Timing:
    """The median of samples in microseconds with a percentile-bootstrap confidence interval (Efron 1979).

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
    instead of a captured graph. A short replay is timed behind one that is not, so that neither what the GPU did before
    (whose writes the L2 still holds) nor the start of a graph is in it. Graphs that are replayed one after another and
    whose results nobody reads may share a ``pool`` of memory (``torch.cuda.graph_pool_handle()``). ``rough_us`` is a
    launch's time in a first pass, cold and issued from Python. Use as a context manager: the graph's memory is given
    back at the end.
    """

    def __init__(self, launches: Sequence[Launch], policy: Policy, pool: Any = None) -> None:
        import torch

        self._event: Any = torch.cuda.Event
        self._graph: Any = None
        self._policy = policy
        self._pool = pool
        self._is_long_enough = False
        self._has_lead = False
        self._launches = list(launches)
        for launch in self._launches[:2]:  # compile and load before anything is timed or captured
            launch()
        torch.cuda.synchronize()
        self.rough_us = self._measure(self._issue) / len(self._launches)

    def __enter__(self) -> "Stopwatch":
        return self

    def __exit__(self, *_: object) -> None:
        self._graph = None
        self._launches = []

    def sample(self) -> float:
        """Microseconds a launch, over one replay."""
        if self._has_lead:
            self._work()
        return self._measure(self._work) / len(self._launches)

    def warm_up(self) -> float:
        """Replay until consecutive samples agree, or for a fifth of a second; returns the last sample."""
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
                self._capture()
            taken = self._measure(self._work)  # the first pass may have been spent in Python
            self._is_long_enough = taken >= MIN_REPLAY_US
        self._has_lead = self._graph is not None and taken < MAX_LED_US

    def _capture(self) -> None:
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._issue()
        self._graph = graph  # the one before must not go first: torch takes no pool whose last graph is gone

    def _work(self) -> None:
        if self._graph is None:
            self._issue()
        else:
            self._graph.replay()

    def _issue(self) -> None:
        for launch in self._launches:
            launch()

    def _measure(self, work: Callable[[], object]) -> float:
        start, stop = (self._event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1000.0


class ClockStopwatch:
    """Times a call on the CPU by the clock; as ``Stopwatch``, each sample repeats it until it is long enough."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._repeats = 1
        self._repeats = max(1, math.ceil(MIN_REPLAY_US / max(self.sample(), 1.0)))

    def sample(self) -> float:
        """Microseconds a call."""
        started = time.perf_counter()
        for _ in range(self._repeats):
            self._call()
        return (time.perf_counter() - started) * 1e6 / self._repeats

    def warm_up(self) -> float:
        """Call once more; the first call was made beforehand."""
        return self.sample()


def screen(stopwatch: Stopwatch, *, give_up_us: float, samples: int = 7) -> tuple[Timing, bool]:
    """A short measurement; returns it and whether it was cut short because it is slower than ``give_up_us``.

    What is far slower is not even captured: the rough pass is its time. Of the rest the median of three samples
    decides, since a single one may be an outlier, and what is slow is never measured again.
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
    min_rounds: int = 15,
    max_rounds: int = 100,
) -> list[Timing]:
    """Measure all round-robin until the fastest contender is told from the others, or the time or the rounds end.

    ``min_rounds`` are run whatever the time, since fewer samples tell nobody from the others.
    The first ``contenders`` compete for the win; what follows are baselines, which decide nothing. Without contenders
    the time or the rounds end it.
    Every round takes one sample of each in a rotated order, so that drift of clocks and temperature meets all alike.
    ``on_turn`` is told the index of whom the GPU runs next.
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
    """Whether every entry either lost clearly or is so close to the fastest that more rounds would not part them."""
    if not samples:
        return True
    timings = sorted((summarize(values) for values in samples), key=lambda timing: timing.median_us)
    fastest = timings[0]
    return all(
        not timing.overlaps(fastest) or (timing.high_us - fastest.low_us) <= TIE * fastest.median_us
        for timing in timings[1:]
    )
