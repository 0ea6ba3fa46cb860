"""The time that configs take to compile: the nearest sweep tells, and its cold cache alone."""

from dataclasses import replace

import pytest

from autotune.device import NVIDIA_H200, Device
from autotune.search.pace import ASSUMED_COMPILE_SECONDS, Pace, cold_compile_seconds, find_pace
from autotune.space import Config
from autotune.trial import Candidate, Outcome, Resources, Status
from tests import sample
from tests.search.test_plan import timed


def test_the_nearest_sweep_gives_the_pace_and_a_sweep_of_another_family_is_better_than_a_guess() -> None:
    near, far = timed(sample.shape(128), 1.0, 0.1), timed(sample.shape(4096), 2.0, 0.2)
    other = timed(sample.shape(128, causal=False), 3.0, 0.3)
    sweeps = [("far", far), ("other", other), ("near", near)]
    assert find_pace(sample.shape(64), NVIDIA_H200, sweeps).source == "near"
    assert find_pace(sample.shape(64), NVIDIA_H200, sweeps[:2]).source == "far"
    assert find_pace(sample.shape(64), NVIDIA_H200, [("other", other)]).source == "other"


@pytest.mark.parametrize("device", [NVIDIA_H200, replace(NVIDIA_H200, power_cap_watts=1)])
def test_without_recorded_seconds_a_compile_is_assumed(device: Device) -> None:
    without_seconds = sample.sweep(sample.shape(64))
    others = timed(sample.shape(64), 9.0, 9.0)
    sweeps = [("here", without_seconds)] if device == NVIDIA_H200 else [("elsewhere", others)]
    assert find_pace(sample.shape(64), device, sweeps) == Pace(ASSUMED_COMPILE_SECONDS, 0.0, "")


def test_what_a_sweep_found_in_the_cache_is_no_compile_time() -> None:
    cold, cached = timed(sample.shape(4096), 2.0, 0.2), timed(sample.shape(64), 0.1, 0.2)
    found = find_pace(sample.shape(64), NVIDIA_H200, [("cold", cold), ("cached", cached)])
    assert found.source == "cached"
    assert found.compile_seconds == pytest.approx(2.0)


def test_cold_seconds_are_the_longest_of_a_binary() -> None:
    def outcome(block: int, seconds: float, binary: str | None) -> Outcome:
        status = Status.OK if binary else Status.COMPILE_ERROR
        return Outcome(
            candidate=Candidate("triton", Config(BLOCK=block)),
            status=status,
            compile_seconds=seconds,
            resources=Resources(binary=binary),
        )

    cold = [outcome(16, 2.0, "a"), outcome(32, 3.0, None)]
    cached = [outcome(16, 0.1, "a"), outcome(32, 0.2, None)]
    other = [outcome(16, 0.3, "b"), outcome(32, 0.4, None)]
    seconds = cold_compile_seconds([(64, cold), (64, cached), (128, other)])
    assert seconds == [[2.0, 3.0], [2.0, 3.0], [0.3, 0.4]]
