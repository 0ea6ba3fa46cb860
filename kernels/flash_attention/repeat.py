"""Calls of flash attention that were checked and launched once, made again with other tensors of the same signature."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.kernels.relaunch import Descriptors, PastLaunch, Relaunch, described_by, relaunch_of, stream_reader
from autotune.kernels.result_buffers import ResultBuffers

NAMES: Final = ("q", "k", "v")  # the first arguments of the launch; the output and the log-sum-exp follow
VARYING: Final = len(NAMES) + 2


class RepeatedAttention:
    """One call of bound dense attention without its checks; returns what that returns."""

    def __init__(
        self,
        relaunch: Relaunch,
        descriptors: Descriptors | None,
        results: ResultBuffers,
        device: int,
        *,
        describes_output: bool,
    ) -> None:
        self._relaunch = relaunch
        self._descriptors = descriptors  # none where the kernel takes pointers
        self._describes_output = describes_output
        self._results = results
        self._stream_of = stream_reader()
        self.device = device

    def __call__(
        self, inputs: Any, addresses: list[Any], out: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        found, lse = self._results.take(inputs[0], inputs, addresses, out)
        loaded: tuple[Any, ...] = tuple(addresses if out is None else addresses[:-1])
        if self._descriptors is None:
            loaded += (found.data_ptr(),)
        elif self._describes_output:
            loaded = self._descriptors.of((*inputs, found), (*loaded, found.data_ptr()))
        else:
            loaded = (*self._descriptors.of(inputs, loaded), found.data_ptr())
        self._relaunch(self._stream_of(self.device), (*loaded, None if lse is None else lse.data_ptr()))
        return found if lse is None else (found, lse)


def repeat_of(launches: Sequence[PastLaunch], results: ResultBuffers, device: torch.device) -> RepeatedAttention | None:
    """Return what repeats a call that has made these launches; None where none can be made again."""
    if len(launches) != 1 or (relaunch := relaunch_of(launches[0], VARYING)) is None:
        return None
    if (described := described_by(launches[0], VARYING)) is None:
        return None
    describes_output = described.number > len(NAMES)
    return RepeatedAttention(relaunch, described.descriptors, results, device.index, describes_output=describes_output)
