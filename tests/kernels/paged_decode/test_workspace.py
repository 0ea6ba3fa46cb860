"""Room for the partial results of a repeated decode: as large as its first call's, in the same order."""

import pytest
import torch

from autotune.kernels.paged_decode.triton.repeat import PIECE, Workspace
from autotune.kernels.tiles.partials import Partials

QUERIES = torch.zeros(2, 4, 16, dtype=torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("counters", [None, torch.zeros(6, dtype=torch.int32)], ids=["kernel", "last"])
def test_both_halves_have_room(dtype: torch.dtype, counters: torch.Tensor | None) -> None:
    partials = Partials(torch.zeros(3, 16, 24, dtype=dtype), torch.zeros(3, 2, 16), counters)
    room, (accumulators, statistics, counted) = Workspace(partials).allocate(QUERIES)
    assert room is not None
    assert accumulators == room.data_ptr()
    assert accumulators + partials.accumulators.nbytes <= statistics
    assert statistics + partials.statistics.nbytes <= room.data_ptr() + room.nbytes
    assert (statistics - accumulators) % PIECE == 0
    assert (counted is None) == (counters is None)


def test_no_partial_results_need_no_room() -> None:
    partials = Partials(QUERIES.new_empty(0, 16, 24), QUERIES.new_empty(0, 2, 16))
    assert Workspace(partials).allocate(QUERIES) == (None, (0, 0, None))
