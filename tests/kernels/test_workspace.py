"""Room for the partial results of a repeated call: as large as its first call's, in the same order."""

import pytest
import torch

from autotune.kernels.tiles.partials import Partials
from autotune.kernels.workspace import PIECE, Workspace

QUERIES = torch.zeros(2, 4, 16, dtype=torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_both_halves_have_room(dtype: torch.dtype) -> None:
    partials = Partials(torch.zeros(3, 16, 24, dtype=dtype), torch.zeros(3, 2, 16))
    room, (accumulators, statistics) = Workspace(partials).allocate(QUERIES)
    assert room is not None
    assert accumulators == room.data_ptr()
    assert accumulators + partials.accumulators.nbytes <= statistics
    assert statistics + partials.statistics.nbytes <= room.data_ptr() + room.nbytes
    assert (statistics - accumulators) % PIECE == 0


def test_no_partial_results_need_no_room() -> None:
    partials = Partials(QUERIES.new_empty(0, 16, 24), QUERIES.new_empty(0, 2, 16))
    assert Workspace(partials).allocate(QUERIES) == (None, (0, 0))
