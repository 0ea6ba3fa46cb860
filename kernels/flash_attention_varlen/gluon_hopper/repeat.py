"""Calls over packed sequences that were checked and launched once, made again with other tensors of one signature."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.kernels.relaunch import Descriptors, PastLaunch, Relaunch, described_by, relaunches_of, stream_reader
from autotune.kernels.result_buffers import ResultBuffers

TABLE: Final = 0  # its place among the first launch's arguments
VARYING: Final = (5, 7)  # of the arguments of each launch; constants follow


class RepeatedPacked:
    """One call of ``BoundPacked`` without its checks; returns what that returns."""

    def __init__(
        self,
        relaunches: Sequence[Relaunch],
        descriptors: Descriptors,
        table_sizes: torch.Size,
        results: ResultBuffers,
        device: int,
    ) -> None:
        self._write_tiles, self._attend = relaunches
        self._descriptors = descriptors  # of the queries, the keys, the values and the output
        self._table_sizes = table_sizes
        self._results = results
        self._stream_of = stream_reader()
        self.device = device

    def __call__(
        self, inputs: Any, addresses: list[Any], out: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        found, lse = self._results.take(inputs[0], inputs, addresses, out)
        table = new_table(inputs[0], self._table_sizes)
        q, k, v, q_offsets, kv_offsets, sinks, q_used, kv_used, *_ = addresses
        loaded = self._descriptors.of((*inputs[:3], found), (q, k, v, found.data_ptr()))
        stream, place = self._stream_of(self.device), table.data_ptr()
        self._write_tiles(stream, (place, q_offsets, kv_offsets, q_used, kv_used))
        self._attend(stream, (*loaded, None if lse is None else lse.data_ptr(), sinks, place))
        del table  # not before: what is allocated next on this stream may take its place
        return found if lse is None else (found, lse)


def new_table(like: torch.Tensor, sizes: torch.Size) -> torch.Tensor:
    """Return room for a table of tiles."""
    return like.new_empty(sizes, dtype=torch.int32)


def repeat_of(launches: Sequence[PastLaunch], results: ResultBuffers, device: torch.device) -> RepeatedPacked | None:
    """Return what repeats a call that has made these launches; None where none can be made again."""
    if len(launches) != len(VARYING) or (relaunches := relaunches_of(launches, VARYING)) is None:
        return None
    described = described_by(launches[1], VARYING[1])
    if described is None or described.descriptors is None:
        return None
    sizes = launches[0].arguments[TABLE].shape
    return RepeatedPacked(relaunches, described.descriptors, sizes, results, device.index)
