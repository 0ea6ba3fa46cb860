"""Networks that rank candidates: against torch, damaged, and on one thread."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autotune.device import NVIDIA_H200
from autotune.search_spaces import networks
from autotune.search_spaces.flash_attention import hopper_ranking
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION as GLUON
from autotune.search_spaces.networks import AGREED, CAUTION, ONE_THREAD, PIECE, Networks
from autotune.search_spaces.paged_decode import decode_ranking
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION as DECODE
from autotune.shape import AttentionShape, PagedShape

SHIPPED = [decode_ranking, hopper_ranking]
SHAPES: dict[Any, tuple[Any, Any]] = {
    decode_ranking: (PagedShape(batch=3, heads=8, max_context=999, head_dim=128), DECODE.space),
    hopper_ranking: (AttentionShape(batch=3, heads=8, seq_q=999, head_dim=128), GLUON.space),
}


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
    wrong = "missing" if kept is None else "damaged"
    whole = Path(module.__file__).with_name(module.NETWORKS).read_bytes()
    if kept is not None:
        (tmp_path / module.NETWORKS).write_bytes(whole[:kept] + bytes(len(whole) - kept))
    monkeypatch.setattr(networks, "files", lambda package: tmp_path)
    module.forget()
    shape, space = SHAPES[module]
    with pytest.warns(RuntimeWarning, match=rf"{module.NETWORKS}: is {wrong}.*so that rules .*again"):
        default = space.default(shape, NVIDIA_H200)
    assert space.why_invalid(default, shape, NVIDIA_H200) is None
    assert not module.is_ranked(shape, NVIDIA_H200)  # without another warning, which would be an error here
    monkeypatch.undo()
    module.forget()
    assert module.is_ranked(shape, NVIDIA_H200)


@pytest.mark.parametrize("flipped", range(-60, 0, 3))
def test_no_flipped_bit_of_a_files_directory_ends_in_another_error(
    flipped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those say, for one, that a file is compressed by a method that nobody knows."""
    content = bytearray(Path(hopper_ranking.__file__).with_name(hopper_ranking.NETWORKS).read_bytes())
    content[flipped] ^= 0b01000000
    content[content.rindex(b"PK\x01\x02") + 10 + flipped % 4] ^= 0b00000101  # the method, and what is beside it
    (tmp_path / hopper_ranking.NETWORKS).write_bytes(bytes(content))
    monkeypatch.setattr(networks, "files", lambda package: tmp_path)
    hopper_ranking.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hopper_ranking.is_ranked(SHAPES[hopper_ranking][0], NVIDIA_H200)
    monkeypatch.undo()
    hopper_ranking.forget()


@pytest.mark.parametrize("module", SHIPPED, ids=lambda module: str(module.NETWORKS))
def test_one_thread_computes_a_piece(module: Any) -> None:
    found = module.read_networks()
    assert all(
        PIECE * inputs * hidden <= ONE_THREAD
        for inputs, hidden in (found.first[0, :-1].shape, found.second[0, :-1].shape)
    )


@pytest.mark.parametrize("wrong", ["lacks an array", "has another shape", "is not finite", "is text"])
def test_arrays_that_are_no_networks_are_damaged(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(hopper_ranking.__file__).with_name(hopper_ranking.NETWORKS)
    with np.load(path, allow_pickle=False) as arrays:
        changed = {name: arrays[name] for name in arrays.files}
    if wrong == "lacks an array":
        del changed["first"]
    elif wrong == "has another shape":
        changed["second"] = changed["second"][:, 1:]
    else:
        changed["last"] = changed["last"] * np.nan
    np.savez(tmp_path / "changed.npz", **changed)
    content = b"networks" if wrong == "is text" else (tmp_path / "changed.npz").read_bytes()
    (tmp_path / hopper_ranking.NETWORKS).write_bytes(content)
    monkeypatch.setattr(networks, "files", lambda package: tmp_path)
    hopper_ranking.forget()
    with pytest.warns(RuntimeWarning, match="is damaged: .*, so that rules choose defaults"):
        assert not hopper_ranking.is_ranked(SHAPES[hopper_ranking][0], NVIDIA_H200)
    monkeypatch.undo()
    hopper_ranking.forget()
