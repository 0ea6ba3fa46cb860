"""A simulated machine: compilers beside one GPU, and the seconds at which configs are judged on it."""

import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from autotune.search.proposals import AHEAD
from benchmarks.search_efficiency.recordings import Recording

COMPILERS: Final = 15  # a host with 16 cores: one keeps the search and the GPU worker going
IN_FLIGHT: Final = min(COMPILERS + 1, AHEAD)  # as a search has it on a GPU


class ProposalSource(Protocol):
    """The origin of a simulation's configs, by index."""

    def ask(self) -> int | None:
        """Return the next config, never given before; None when there is none, or none before more was told."""

    def tell(self, index: int) -> None:
        """Learn from a config that was judged."""


class Judged(NamedTuple):
    """A config and the second at which its verdict was known."""

    seconds: float
    config: int


class Batches:
    """Configs in a known order: the next batch is given when the whole of the last was judged."""

    def __init__(self, batches: Sequence[Sequence[int]]) -> None:
        self._batches = [list(batch) for batch in reversed(batches) if batch]
        self._given: list[int] = []
        self._open = 0

    def ask(self) -> int | None:
        if not self._given and not self._open and self._batches:
            self._given = self._batches.pop()
        if not self._given:
            return None
        self._open += 1
        return self._given.pop(0)

    def tell(self, index: int) -> None:
        self._open -= 1


def simulate(recording: Recording, source: ProposalSource, *, compilers: int, in_flight: int) -> list[Judged]:
    """Return verdicts in the order of their seconds, as many as the recording's budget or the source allows.

    Asking takes no time, and a config that does not compile never reaches the GPU.
    """
    free = [0.0] * compilers
    gpu_free, flying, left = 0.0, 0, recording.budget
    events: list[tuple[float, bool, int]] = []  # second, whether judged or only compiled, config
    judged: list[Judged] = []
    now = 0.0
    while True:
        while left and flying < in_flight and (index := source.ask()) is not None:
            compiled = max(now, heapq.heappop(free)) + recording.compile_seconds[index]
            heapq.heappush(free, compiled)
            heapq.heappush(events, (compiled, False, index))
            flying, left = flying + 1, left - 1
        while events:
            now, is_judged, index = heapq.heappop(events)
            if is_judged:
                break
            gpu_free = max(gpu_free, now) + recording.judge_seconds[index]
            heapq.heappush(events, (gpu_free if recording.judge_seconds[index] else now, True, index))
        else:
            return judged
        judged.append(Judged(float(now), index))
        source.tell(index)
        flying -= 1
