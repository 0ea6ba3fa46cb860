"""Calls of paged prefill that were checked and launched once, made again with other tensors of the same signature."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.kernels.relaunch import PastLaunch, Relaunch, relaunch_of, stream_reader
from autotune.kernels.result_buffers import ResultBuffers

NAMES: Final = (
    *("q", "k_cache", "v_cache", "page_table", "seq_lens", "cu_seqlens_q"),
    *("sinks", "alibi_slopes", "k_scale", "v_scale"),
)
VARYING: Final = 7  # of the launch's arguments; constants follow


class RepeatedPrefill:
    """One call of ``BoundPrefill`` without its checks; returns what that returns."""

    def __init__(self, relaunch: Relaunch, results: ResultBuffers, device: int) -> None:
        self._relaunch = relaunch
        self._results = results
        self._stream_of = stream_reader()
        self.device = device

    def __call__(
        self, inputs: Any, addresses: list[Any], out: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        found, lse = self._results.take(inputs[0], inputs, addresses, out)
        q, k, v, table, lengths, offsets, sinks, slopes, k_scales, v_scales, *_ = addresses
        outputs = (found.data_ptr(), None if lse is None else lse.data_ptr())
        arguments = (q, (k, v, k_scales, v_scales), table, lengths, offsets, (sinks, slopes), outputs)
        self._relaunch(self._stream_of(self.device), arguments)
        return found if lse is None else (found, lse)


def repeat_of(launches: Sequence[PastLaunch], results: ResultBuffers, device: torch.device) -> RepeatedPrefill | None:
    """Return what repeats a call that has made these launches; None where none can be made again."""
    if len(launches) != 1 or (relaunch := relaunch_of(launches[0], VARYING)) is None:
        return None
    return RepeatedPrefill(relaunch, results, device.index)
