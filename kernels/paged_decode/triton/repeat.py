"""Calls of paged decode that were checked and launched once, made again with other tensors of the same signature."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.kernels.paged_decode.triton.counters import take_counters
from autotune.kernels.relaunch import PastLaunch, Relaunch, relaunch_of, stream_of
from autotune.kernels.result_buffers import ResultBuffers
from autotune.kernels.tiles.partials import Partials

NAMES: Final = (
    *("q", "k_cache", "v_cache", "page_table", "seq_lens"),
    *("sinks", "alibi_slopes", "k_scale", "v_scale"),
)
PARTIALS: Final = 6  # their place among the first launch's arguments; constants follow
MERGED: Final = 4  # where the second launch's constants begin
PIECE: Final = 512  # bytes: what torch aligns an allocation to, and so the second half of one


class Workspace:
    """Room for the partial results of one call, as the first call of its signature had it."""

    def __init__(self, partials: Partials) -> None:
        self._accumulators = -(-partials.accumulators.nbytes // PIECE) * PIECE
        self._bytes = self._accumulators + partials.statistics.nbytes
        self._counters = 0 if partials.counters is None else partials.counters.numel()

    def allocate(self, q: torch.Tensor) -> tuple[torch.Tensor | None, tuple[int, int, int | None]]:
        """Return memory to hold on to until all launches are made, and the addresses of partial results in it."""
        if not self._bytes:
            return None, (0, 0, None)
        room = q.new_empty(self._bytes, dtype=torch.uint8)
        address = room.data_ptr()
        counters = take_counters(self._counters, q.device).data_ptr() if self._counters else None
        return room, (address, address + self._accumulators, counters)


class RepeatedDecode:
    """One call of ``BoundDecode`` without its checks; returns what that returns."""

    def __init__(
        self, launches: Sequence[PastLaunch], relaunches: Sequence[Relaunch], results: ResultBuffers, device: int
    ) -> None:
        self._attend, *merge = relaunches
        self._merge = merge[0] if merge else None
        self._constants = launches[0].arguments[PARTIALS + 1 :]
        self._merged_constants = launches[-1].arguments[MERGED:]
        self._workspace = Workspace(launches[0].arguments[PARTIALS])
        self._results = results
        self.device = device

    def __call__(self, inputs: Any, out: torch.Tensor | None) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        found, lse = self._results.take(inputs[0], inputs, out)
        room, partials = self._workspace.allocate(inputs[0])
        q, k, v, table, lengths, sinks, slopes, k_scales, v_scales = [
            None if each is None else each.data_ptr() for each in inputs
        ]
        outputs = (found.data_ptr(), None if lse is None else lse.data_ptr())
        cache = (k, v, k_scales, v_scales)
        arguments = (q, cache, table, lengths, (sinks, slopes), outputs, partials, *self._constants)
        stream = stream_of(self.device)
        self._attend(stream, arguments)
        if self._merge is not None:
            self._merge(stream, (partials, lengths, sinks, outputs, *self._merged_constants))
        del room  # not before: what is allocated next on this stream may take its place
        return found if lse is None else (found, lse)


def repeat_of(launches: Sequence[PastLaunch], results: ResultBuffers, device: torch.device) -> RepeatedDecode | None:
    """Return what repeats a call that has made these launches; None where none can be made again."""
    relaunches = [again for launch in launches if (again := relaunch_of(launch)) is not None]
    if not launches or len(relaunches) != len(launches):
        return None
    return RepeatedDecode(launches, relaunches, results, device.index)
