"""Calls of paged decode that were checked and launched once, made again with other tensors of the same signature."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.kernels.paged_decode.triton.counters import take_counters
from autotune.kernels.relaunch import PastLaunch, Relaunch, relaunches_of, stream_reader
from autotune.kernels.result_buffers import ResultBuffers
from autotune.kernels.tiles.partials import Partials
from autotune.kernels.workspace import Workspace

NAMES: Final = (
    *("q", "k_cache", "v_cache", "page_table", "seq_lens"),
    *("sinks", "alibi_slopes", "k_scale", "v_scale"),
)
PARTIALS: Final = 6  # their place among the first launch's arguments
VARYING: Final = (PARTIALS + 1, 4)  # of the arguments of each launch; constants follow


class RepeatedDecode:
    """One call of ``BoundDecode`` without its checks; returns what that returns."""

    def __init__(self, partials: Partials, relaunches: Sequence[Relaunch], results: ResultBuffers, device: int) -> None:
        self._attend, *merge = relaunches
        self._merge = merge[0] if merge else None
        self._workspace = Workspace(partials)
        self._counters = 0 if partials.counters is None else partials.counters.numel()
        self._results = results
        self._stream_of = stream_reader()
        self.device = device

    def __call__(
        self, inputs: Any, addresses: list[Any], out: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        found, lse = self._results.take(inputs[0], inputs, addresses, out)
        room, places = self._workspace.allocate(inputs[0])
        counters = take_counters(self._counters, inputs[0].device).data_ptr() if self._counters else None
        partials = (*places, counters)
        q, k, v, table, lengths, sinks, slopes, k_scales, v_scales, *_ = addresses
        outputs = (found.data_ptr(), None if lse is None else lse.data_ptr())
        stream = self._stream_of(self.device)
        self._attend(stream, (q, (k, v, k_scales, v_scales), table, lengths, (sinks, slopes), outputs, partials))
        if self._merge is not None:
            self._merge(stream, (partials, lengths, sinks, outputs))
        del room  # not before: what is allocated next on this stream may take its place
        return found if lse is None else (found, lse)


def repeat_of(launches: Sequence[PastLaunch], results: ResultBuffers, device: torch.device) -> RepeatedDecode | None:
    """Return what repeats a call that has made these launches; None where none can be made again."""
    if (relaunches := relaunches_of(launches, VARYING)) is None:
        return None
    return RepeatedDecode(launches[0].arguments[PARTIALS], relaunches, results, device.index)
