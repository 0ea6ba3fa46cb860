"""Calls over split widths that were checked and launched once, made again with other tensors of the same signature."""

from collections.abc import Sequence
from typing import Any, Final, overload

import torch

from autotune.kernels.flash_attention.repeat import NAMES
from autotune.kernels.relaunch import Descriptors, PastLaunch, Relaunch, described_by, relaunch_of, stream_reader
from autotune.kernels.result_buffers import ResultBuffers

VARYING: Final = 2 * len(NAMES) + 2  # of the launch's arguments: main pieces, rests, the output, the log-sum-exp


class PiecesOf(Sequence[torch.Tensor]):
    """Inputs, and views of their rests, which are made only where they are asked for."""

    def __init__(self, inputs: Sequence[torch.Tensor], begins: Sequence[int]) -> None:
        self._inputs, self._begins = inputs, begins

    def __len__(self) -> int:
        return 2 * len(self._begins)

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[torch.Tensor]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | Sequence[torch.Tensor]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        number = len(self._begins)
        return (
            self._inputs[index] if index < number else self._inputs[index - number][..., self._begins[index - number] :]
        )


class RepeatedPieces:
    """One call of bound dense attention without its checks; returns what that returns."""

    def __init__(
        self,
        relaunch: Relaunch,
        descriptors: Descriptors | None,
        results: ResultBuffers,
        device: int,
        *,
        begins: Sequence[int],
        item_bytes: int,
    ) -> None:
        self._relaunch = relaunch
        self._descriptors = descriptors  # of all pieces; none where the kernel takes pointers
        self._begins = begins  # of rests, in columns
        self._shifts = tuple(begin * item_bytes for begin in begins)
        self._results = results
        self._stream_of = stream_reader()
        self.device = device

    def __call__(
        self, inputs: Any, addresses: list[Any], out: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        found, lse = self._results.take(inputs[0], inputs, addresses, out)
        q, k, v = addresses[: len(NAMES)]
        of_q, of_k, of_v = self._shifts
        loaded: tuple[Any, ...] = (q, k, v, q + of_q, k + of_k, v + of_v)
        if self._descriptors is not None:
            loaded = self._descriptors.of(PiecesOf(inputs, self._begins), loaded)
        self._relaunch(
            self._stream_of(self.device), (*loaded, found.data_ptr(), None if lse is None else lse.data_ptr())
        )
        return found if lse is None else (found, lse)


def repeat_of(launches: Sequence[PastLaunch], results: ResultBuffers, device: torch.device) -> RepeatedPieces | None:
    """Return what repeats a call that has made these launches; None where none can be made again."""
    if len(launches) != 1 or (relaunch := relaunch_of(launches[0], VARYING)) is None:
        return None
    if (described := described_by(launches[0], VARYING)) is None:
        return None
    pieces = [getattr(each, "base", each) for each in launches[0].arguments[: 2 * len(NAMES)]]
    pairs = zip(pieces[: len(NAMES)], pieces[len(NAMES) :], strict=True)
    begins = [rest.storage_offset() - main.storage_offset() for main, rest in pairs]
    return RepeatedPieces(
        relaunch, described.descriptors, results, device.index, begins=begins, item_bytes=pieces[0].element_size()
    )
