"""Calls over split keys that were checked and launched once, made again with other tensors of the same signature."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.kernels.relaunch import Descriptors, PastLaunch, Relaunch, described_by, relaunches_of, stream_reader
from autotune.kernels.result_buffers import ResultBuffers
from autotune.kernels.tiles.partials import Partials
from autotune.kernels.workspace import Workspace

PARTIALS: Final = 5  # their place among the first launch's arguments
VARYING: Final = (PARTIALS + 1, 3)  # of the arguments of each launch; constants follow


class RepeatedShares:
    """One call of bound attention over split keys without its checks; returns what that returns."""

    def __init__(
        self,
        partials: Partials,
        relaunches: Sequence[Relaunch],
        descriptors: Descriptors | None,
        results: ResultBuffers,
        device: int,
    ) -> None:
        self._attend, *merge = relaunches
        self._merge = merge[0] if merge else None
        self._descriptors = descriptors  # none where the kernel takes pointers
        self._workspace = Workspace(partials)
        self._results = results
        self._stream_of = stream_reader()
        self.device = device

    def __call__(
        self, inputs: Any, addresses: list[Any], out: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        found, lse = self._results.take(inputs[0], inputs, addresses, out)
        room, places = self._workspace.allocate(inputs[0])
        q, k, v, *_ = addresses
        loaded = (k, v) if self._descriptors is None else self._descriptors.of(inputs[1:], (k, v))
        outputs = (found.data_ptr(), None if lse is None else lse.data_ptr())
        partials = (*places, None)
        stream = self._stream_of(self.device)
        self._attend(stream, (q, *loaded, *outputs, partials))
        if self._merge is not None:
            self._merge(stream, (partials, *outputs))
        del room  # not before: what is allocated next on this stream may take its place
        return found if lse is None else (found, lse)


def repeat_of(launches: Sequence[PastLaunch], results: ResultBuffers, device: torch.device) -> RepeatedShares | None:
    """Return what repeats a call that has made these launches; None where none can be made again."""
    if (relaunches := relaunches_of(launches, VARYING)) is None:
        return None
    if (described := described_by(launches[0], PARTIALS)) is None:
        return None
    return RepeatedShares(launches[0].arguments[PARTIALS], relaunches, described.descriptors, results, device.index)
