"""Calls over packed sequences and padded batches that were checked and launched once, made again with other tensors of
one signature."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.kernels.relaunch import Descriptors, PastLaunch, Relaunch, described_by, relaunches_of, stream_reader
from autotune.kernels.result_buffers import ResultBuffers

TABLE: Final = 0  # its place among the arguments of the launch that writes it; so are the numbers of a padded batch
VARYING: Final = (6, 8)  # of the arguments of each launch; constants follow
VARYING_PADDED: Final = (4, 6, 8)


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
        self._write_tiles(stream, (place, q_offsets, kv_offsets, q_used, kv_used, None))
        self._attend(stream, (*loaded, None if lse is None else lse.data_ptr(), sinks, place, None))
        del table  # not before: what is allocated next on this stream may take its place
        return found if lse is None else (found, lse)


class RepeatedPadded:
    """One call of ``BoundPacked`` over a padded batch without its checks; returns what that returns."""

    def __init__(
        self,
        launches: Sequence[PastLaunch],
        relaunches: Sequence[Relaunch],
        descriptors: Descriptors,
        results: ResultBuffers,
        device: int,
    ) -> None:
        self._number_rows, self._write_tiles, self._attend = relaunches
        self._descriptors = descriptors  # of the queries, the keys, the values and the output
        self._numbers_sizes, self._table_sizes = (each.arguments[TABLE].shape for each in launches[:2])
        self._results = results
        self._stream_of = stream_reader()
        self.device = device

    def __call__(
        self, inputs: Any, addresses: list[Any], out: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        found, lse = self._results.take(inputs[0], inputs, addresses, out)
        numbers, table = (new_table(inputs[0], sizes) for sizes in (self._numbers_sizes, self._table_sizes))
        q, k, v, _, _, sinks, *said = addresses[: len(inputs)]
        place, output = numbers.data_ptr(), found.data_ptr()
        loaded = self._descriptors.of((*inputs[:3], found), (q, k, v, output))
        stream = self._stream_of(self.device)
        self._number_rows(stream, (place, *said))
        self._write_tiles(stream, (table.data_ptr(), None, None, None, None, place))
        logarithms = None if lse is None else lse.data_ptr()
        self._attend(stream, (*loaded, logarithms, sinks, table.data_ptr(), (output, place)))
        del numbers, table  # not before: what is allocated next on this stream may take their place
        return found if lse is None else (found, lse)


def new_table(like: torch.Tensor, sizes: torch.Size) -> torch.Tensor:
    """Return room for a table of tiles, or for the numbers of a padded batch."""
    return like.new_empty(sizes, dtype=torch.int32)


def repeat_of(
    launches: Sequence[PastLaunch], results: ResultBuffers, device: torch.device
) -> RepeatedPacked | RepeatedPadded | None:
    """Return what repeats a call that has made these launches; None where none can be made again."""
    varying = next((each for each in (VARYING, VARYING_PADDED) if len(each) == len(launches)), None)
    if varying is None or (relaunches := relaunches_of(launches, varying)) is None:
        return None
    described = described_by(launches[-1], varying[-1])
    if described is None or described.descriptors is None:
        return None
    if varying is VARYING_PADDED:
        return RepeatedPadded(launches, relaunches, described.descriptors, results, device.index)
    sizes = launches[0].arguments[TABLE].shape
    return RepeatedPacked(relaunches, described.descriptors, sizes, results, device.index)
