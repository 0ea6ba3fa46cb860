"""Races of two sources: what is kept of them is what carries tables over, and winners are chosen of this device."""

from dataclasses import replace

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.trial import Timing
from benchmarks.raced_rows import device_text, read_races
from benchmarks.revision_race import Raced, choose_winners, kept
from tests import sample


@pytest.fixture
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "current_device", lambda: NVIDIA_H200)


def timing(median_us: float) -> Timing:
    return Timing(median_us=median_us, low_us=median_us, high_us=median_us, samples=10)


@pytest.mark.usefixtures("on_an_h200")
def test_what_is_kept_of_a_race_carries_rows_over() -> None:
    winner = sample.trial()
    [raced] = read_races(
        [
            kept(
                Raced(winner, timing(101.0), timing(100.0)),
                {"flash_attention triton": winner.source_hash},
                {"flash_attention triton": "b" * 64},
            )
        ]
    )
    assert (raced.operation, raced.implementation, raced.now) == ("flash_attention", "triton", "b" * 64)
    assert raced.device == device_text(NVIDIA_H200)
    assert raced.mean == pytest.approx(1.01)
    assert raced.is_carried(replace(winner, device=NVIDIA_H200))


@pytest.mark.usefixtures("on_an_h200")
def test_winners_are_chosen_once_each_and_spread() -> None:
    few = choose_winners(4, ["paged_decode"])
    assert len({(each.shape, each.config) for each in few}) == 4
    every = choose_winners(10**6, ["paged_prefill"])
    assert len({(each.shape, each.config) for each in every}) == len(every)


def test_a_device_without_winners_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown: Device = replace(NVIDIA_H200, name="NVIDIA GeForce RTX 5090", arch="sm_120")
    monkeypatch.setattr(platforms, "current_device", lambda: unknown)
    with pytest.raises(SystemExit, match="no winners ship of NVIDIA GeForce RTX 5090"):
        choose_winners(4, ["paged_decode"])
