"""Calls of paged prefill over pages laid side by side, made again with other tensors of the same signature."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.kernels.flash_attention_varlen.gluon_hopper.repeat import TABLE, new_table
from autotune.kernels.relaunch import Descriptors, PastLaunch, Relaunch, described_by, relaunches_of, stream_reader
from autotune.kernels.result_buffers import ResultBuffers

VARYING: Final = (7, 6, 9)  # of the arguments of each launch; constants follow
SCALES: Final = 8  # of the arguments of the launch that attends
ROOM: Final = slice(3, 6)  # where the launch that copies has the keys, the values and their offsets


class RepeatedGathered:
    """One call of ``BoundGathered`` without its checks; returns what that returns."""

    def __init__(
        self,
        launches: Sequence[PastLaunch],
        relaunches: Sequence[Relaunch],
        descriptors: Descriptors,
        results: ResultBuffers,
        device: int,
    ) -> None:
        self._gather, self._write_tiles, self._attend = relaunches
        self._descriptors = descriptors  # of the queries, the keys, the values and the output
        self._room = [(each.shape, each.dtype) for each in launches[0].arguments[ROOM]]
        self._table_sizes = launches[1].arguments[TABLE].shape
        scales = launches[2].arguments[SCALES]
        self._scale_strides = None if scales is None else (scales.key_stride, scales.value_stride)
        self._has_window = launches[0].arguments[VARYING[0] - 1] is not None
        self._results = results
        self._stream_of = stream_reader()
        self.device = device

    def __call__(
        self, inputs: Any, addresses: list[Any], out: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        found, lse = self._results.take(inputs[0], inputs, addresses, out)
        room = [new_room(inputs[0], *each) for each in self._room]
        table = new_table(inputs[0], self._table_sizes)
        q, k, v, pages, lengths, offsets, sinks, _, k_scales, v_scales, *_ = addresses
        keys, values, key_offsets = (each.data_ptr() for each in room)
        loaded = self._descriptors.of((inputs[0], *room[:2], found), (q, keys, values, found.data_ptr()))
        stream, place = self._stream_of(self.device), table.data_ptr()
        counted = offsets if self._has_window else None
        self._gather(stream, ((k, v, k_scales, v_scales), pages, lengths, keys, values, key_offsets, counted))
        self._write_tiles(stream, (place, offsets, key_offsets, None, lengths, None))
        scales = None if self._scale_strides is None else (k_scales, v_scales, *self._scale_strides)
        self._attend(stream, (*loaded, None if lse is None else lse.data_ptr(), sinks, place, None, scales))
        del room, table  # not before: what is allocated next on this stream may take their place
        return found if lse is None else (found, lse)


def new_room(like: torch.Tensor, sizes: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return room for keys, values or offsets."""
    return like.new_empty(sizes, dtype=dtype)


def repeat_of(launches: Sequence[PastLaunch], results: ResultBuffers, device: torch.device) -> RepeatedGathered | None:
    """Return what repeats a call that has made these launches; None where none can be made again."""
    if len(launches) != len(VARYING) or (relaunches := relaunches_of(launches, VARYING)) is None:
        return None
    described = described_by(launches[2], VARYING[2])
    if described is None or described.descriptors is None:
        return None
    return RepeatedGathered(launches, relaunches, described.descriptors, results, device.index)
