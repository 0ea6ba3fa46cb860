"""Calls of decode over latents in Gluon that were checked and launched once, made again with other tensors."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.kernels.relaunch import Descriptors, PastLaunch, Relaunch, described_by, relaunches_of, stream_reader
from autotune.kernels.result_buffers import ResultBuffers
from autotune.kernels.tiles.partials import Partials
from autotune.kernels.workspace import Workspace

DESCRIBED: Final = 2  # descriptors of the cache, the first arguments of the first launch
PARTIALS: Final = 7  # their place among its arguments
VARYING: Final = (PARTIALS + 1, 4)  # of the arguments of each launch; constants follow


class RepeatedLatent:
    """One call of ``BoundHopperLatent`` without its checks; returns what that returns."""

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
        self._descriptors = descriptors
        self._workspace = Workspace(partials)
        self._results = results
        self._stream_of = stream_reader()
        self.device = device

    def __call__(
        self, inputs: Any, addresses: list[Any], out: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        found, lse = self._results.take(inputs[0], inputs, addresses, out)
        room, places = self._workspace.allocate(inputs[0])
        partials = (*places, None)
        q, cache, _, table, lengths, sinks, *_ = addresses
        latents: tuple[Any, ...] = (cache,) * DESCRIBED
        if self._descriptors is not None:
            latents = self._descriptors.of((inputs[1],) * DESCRIBED, latents)
        outputs = (found.data_ptr(), None if lse is None else lse.data_ptr())
        stream = self._stream_of(self.device)
        self._attend(stream, (*latents, q, table, lengths, sinks, outputs, partials))
        if self._merge is not None:
            self._merge(stream, (partials, lengths, sinks, outputs))
        del room  # not before: what is allocated next on this stream may take its place
        return found if lse is None else (found, lse)


def repeat_of(launches: Sequence[PastLaunch], results: ResultBuffers, device: torch.device) -> RepeatedLatent | None:
    """Return what repeats a call that has made these launches; None where none can be made again."""
    if (relaunches := relaunches_of(launches, VARYING)) is None:
        return None
    if (described := described_by(launches[0], VARYING[0])) is None:
        return None
    partials = launches[0].arguments[PARTIALS]
    return RepeatedLatent(partials, relaunches, described.descriptors, results, device.index)
