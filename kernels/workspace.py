"""Room for the partial results of a call that is made again, as its first call had it."""

from typing import Final

import torch

from autotune.kernels.tiles.partials import Partials

PIECE: Final = 512  # bytes: torch aligns an allocation to a multiple of it; the statistics begin at one, too


class Workspace:
    """One allocation for the accumulators and the statistics of a call's partial results."""

    def __init__(self, partials: Partials) -> None:
        self._accumulators = -(-partials.accumulators.nbytes // PIECE) * PIECE
        self._bytes = self._accumulators + partials.statistics.nbytes

    def allocate(self, like: torch.Tensor) -> tuple[torch.Tensor | None, tuple[int, int]]:
        """Return memory to hold on to until all launches are made, and the addresses of partial results in it."""
        if not self._bytes:
            return None, (0, 0)
        room = like.new_empty(self._bytes, dtype=torch.uint8)
        address = room.data_ptr()
        return room, (address, address + self._accumulators)
