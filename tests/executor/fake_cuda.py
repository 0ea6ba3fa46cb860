"""Stands in for ``torch.cuda``: a clock that launches move, graphs that record them, and memory that is counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch


class FakeCuda:
    """The part of ``torch.cuda`` that the worker uses: ``now`` in microseconds, ``held`` in bytes, graphs counted."""

    def __init__(self) -> None:
        self.now = 0.0
        self.graphs = 0
        self.held = self.highest = 0
        self._recording: list[float] | None = None

    def launch(self, microseconds: float) -> None:
        if self._recording is not None:
            self._recording.append(microseconds)
        else:
            self.now += microseconds

    def allocate(self, count: int) -> None:
        """So many bytes more, or less."""
        self.held += count
        self.highest = max(self.highest, self.held)

    def synchronize(self) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def reset_peak_memory_stats(self) -> None:
        self.highest = self.held

    def graph_pool_handle(self) -> None:
        pass

    def max_memory_allocated(self) -> int:
        return self.highest

    def memory_allocated(self) -> int:
        return self.held

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(L2_cache_size=1)

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802 - torch's name
        event = SimpleNamespace(synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self.now)
        event.elapsed_time = lambda stop: (stop.at - event.at) / 1000.0
        return event

    def CUDAGraph(self) -> Any:  # noqa: N802
        self.graphs += 1
        graph = SimpleNamespace(launches=[])
        graph.replay = lambda: self.launch(sum(graph.launches))
        return graph

    @contextmanager
    def graph(self, graph: Any, *, pool: Any = None) -> Iterator[None]:
        self._recording = graph.launches
        yield
        self._recording = None


def replace_cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A stand-in, in the place of the real one."""
    cuda = FakeCuda()
    memory = ("empty_cache", "graph_pool_handle", "reset_peak_memory_stats", "max_memory_allocated", "memory_allocated")
    for name in ("Event", "CUDAGraph", "graph", "synchronize", "get_device_properties", *memory):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    return cuda
