"""Fitted times of ``triton``: known ones are found again, and those that ship are what ships says."""

import pytest

from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention import triton_estimate as shipped
from autotune.search_spaces.flash_attention.tile_times import TileTimes
from autotune.search_spaces.flash_attention.triton_estimate import TritonTimes
from autotune.shape import AttentionShape
from benchmarks import triton_times
from tests import sample

KNOWN = TritonTimes(TileTimes(0.5, 0.2, 1.2), 3.0)
CONFIG = sample.config(BLOCK_Q=64, BLOCK_K=64, num_warps=4)


def test_known_times_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside one time that is four times what it should be."""
    monkeypatch.setattr(shipped, "TIMES", {(128, 128, False): {64: KNOWN}})
    shapes = [
        AttentionShape(batch=batch, heads=16, seq_q=seq, head_dim=128, causal=causal)
        for batch in (1, 3, 8)
        for seq in (64, 100, 300, 1000, 4096)
        for causal in (False, True)
    ]
    measured = {(shape, NVIDIA_H200): shipped.estimate(CONFIG, shape, NVIDIA_H200) or 0.0 for shape in shapes}
    measured[shapes[0], NVIDIA_H200] *= 4.0
    found, error = triton_times.fit(64, measured)
    assert (*found.of_tile, found.launch) == pytest.approx((*KNOWN.of_tile, KNOWN.launch), abs=0.05)
    assert error == pytest.approx(0.046, abs=0.01)  # of the one: ln 4 over 30


def test_only_what_a_gpu_measured_undisturbed_counts() -> None:
    shapes = [sample.shape(512, head_dim=64, batch=batch) for batch in range(1, triton_times.LEAST + 1)]
    trials = [sample.trial(shape, CONFIG, timing=sample.timing(20.0)) for shape in shapes]
    found = triton_times.observe([*trials, sample.trial(shapes[0], CONFIG, timing=sample.timing(10.0))])
    assert list(found) == [((64, 64, False), 64)]
    assert sorted(found[(64, 64, False), 64].values()) == [10.0, *[20.0] * (len(shapes) - 1)]
    assert triton_times.observe(trials[1:]) == {}  # too few
    wider = [sample.trial(shape, sample.config(**{**CONFIG, "BLOCK_Q": 128})) for shape in shapes]
    assert triton_times.observe(wider) == {}
    longer = [sample.trial(shape, CONFIG, timing=sample.timing(50.0)) for shape in shapes]
    assert triton_times.observe(longer) == {}


@pytest.mark.slow
def test_the_times_that_ship_are_those_that_are_fitted(capsys: pytest.CaptureFixture[str]) -> None:
    triton_times.main([])
    printed = capsys.readouterr().out
    assert printed.count("TileTimes(") == sum(map(len, shipped.TIMES.values()))
    for kind, tiles in shipped.TIMES.items():
        assert f"    {kind}: {{" in printed
        for block_k, times in tiles.items():
            values = ", ".join(f"{value:.2f}" for value in times.of_tile)
            assert f"        {block_k}: TritonTimes(TileTimes({values}), {times.launch:.2f})," in printed
