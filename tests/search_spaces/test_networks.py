"""Networks that rank candidates: against torch, damaged, and on one thread."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autotune.errors import TableError
from autotune.search_spaces import networks
from autotune.search_spaces.flash_attention import hopper_ranking
from autotune.search_spaces.networks import AGREED, CAUTION, ONE_THREAD, PIECE, Networks
from autotune.search_spaces.paged_decode import decode_ranking

SHIPPED = [decode_ranking, hopper_ranking]


def test_networks_compute_what_torch_does() -> None:
    torch.manual_seed(0)
    modules = [
        torch.nn.Sequential(
            *(torch.nn.Linear(5, 4), torch.nn.SiLU(), torch.nn.Linear(4, 4), torch.nn.SiLU()),
            torch.nn.Linear(4, 1, bias=False),
        )
        for _ in range(3)
    ]
    layers = [[each for each in module if isinstance(each, torch.nn.Linear)] for module in modules]

    def stacked(place: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        both = [torch.cat((each[place].weight.T, each[place].bias[None])).detach() for each in layers]
        return torch.stack(both).numpy()

    last = torch.stack([each[2].weight[0].detach() for each in layers]).numpy()
    linear = np.array([0.0, 0.5, 0.0, 0.0, 0.0], np.float32)
    low, high = np.full(5, -1.0, np.float32), np.full(5, 2.0, np.float32)
    ranking = Networks(low, high, low * 0.5, high, stacked(0), stacked(1), last, linear)
    given = torch.randn(AGREED, 5, dtype=torch.float64) * 2
    scaled = ((given.clamp(-1.0, 2.0) + 0.5) / 2.0).float()
    estimates = torch.stack([module(scaled)[:, 0] + 0.5 * scaled[:, 1] for module in modules]).detach()
    estimates -= estimates.mean(dim=1, keepdim=True)  # all of them are among the best
    expected = estimates.mean(dim=0) + CAUTION * estimates.std(dim=0, correction=0)
    np.testing.assert_allclose(ranking.rank(given.numpy()), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("module", SHIPPED, ids=lambda module: str(module.NETWORKS))
@pytest.mark.parametrize("kept", [0, 100, 60_000, None], ids=str)
def test_networks_that_are_damaged_or_gone_are_named(
    kept: int | None, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path(module.__file__).with_name(module.NETWORKS).read_bytes()
    if kept is not None:
        (tmp_path / module.NETWORKS).write_bytes(whole[:kept] + bytes(len(whole) - kept))
    monkeypatch.setattr(networks, "files", lambda package: tmp_path)
    module.forget()
    with pytest.raises(TableError, match=rf"{module.NETWORKS}: is damaged: .*installing the package again"):
        module.read_networks()


@pytest.mark.parametrize("module", SHIPPED, ids=lambda module: str(module.NETWORKS))
def test_one_thread_computes_a_piece(module: Any) -> None:
    found = module.read_networks()
    assert all(
        PIECE * inputs * hidden <= ONE_THREAD
        for inputs, hidden in (found.first[0, :-1].shape, found.second[0, :-1].shape)
    )
