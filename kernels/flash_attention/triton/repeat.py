"""Calls of flash attention that were checked and launched once, made again with other tensors of the same signature."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from autotune.kernels.relaunch import Descriptors, PastLaunch, Relaunch, descriptors_of, relaunch_of, stream_of
from autotune.kernels.result_buffers import ResultBuffers

NAMES: Final = ("q", "k", "v")  # the first arguments of the launch; the output and the log-sum-exp follow


class RepeatedAttention:
    """One call of ``BoundAttention`` without its checks; returns what that returns."""

    def __init__(
        self,
        launch: PastLaunch,
        relaunch: Relaunch,
        descriptors: Descriptors | None,
        results: ResultBuffers,
        device: int,
    ) -> None:
        self._relaunch = relaunch
        self._descriptors = descriptors  # none where the kernel takes pointers
        self._constants = launch.arguments[len(NAMES) + 2 :]
        self._results = results
        self.device = device

    def __call__(self, inputs: Any, out: torch.Tensor | None) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        q, k, v = inputs
        found, lse = self._results.take(q, inputs, out)
        addresses = (found.data_ptr(), None if lse is None else lse.data_ptr())
        arguments: tuple[Any, ...]
        if self._descriptors is not None:
            arguments = (*self._descriptors.of(q, k, v), *addresses, *self._constants)
        else:
            arguments = (q.data_ptr(), k.data_ptr(), v.data_ptr(), *addresses, *self._constants)
        self._relaunch(stream_of(self.device), arguments)
        return found if lse is None else (found, lse)


def repeat_of(launches: Sequence[PastLaunch], results: ResultBuffers, device: torch.device) -> RepeatedAttention | None:
    """Return what repeats a call that has made these launches; None where none can be made again."""
    if len(launches) != 1 or (relaunch := relaunch_of(launches[0])) is None:
        return None
    inputs = launches[0].arguments[: len(NAMES)]
    has_descriptors = isinstance(inputs[0], TensorDescriptor)
    descriptors = descriptors_of(launches[0], inputs) if has_descriptors else None
    if has_descriptors and descriptors is None:
        return None
    return RepeatedAttention(launches[0], relaunch, descriptors, results, device.index)
