"""The order of what a Gaudi is asked when time is taken, by a stand-in with a clock of its own."""

from collections.abc import Callable

import pytest
import torch

from autotune.errors import MissingDependencyError, UsageError
from autotune.kernels.baselines.gaudi.bridge import time_hpu
from tests.kernels.baselines.gaudi.habana import COMPILE, MILLISECONDS, Gaudi, install

MICROSECONDS = MILLISECONDS * 1000.0


@pytest.fixture(params=[False, True], ids=["eager", "lazy"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Gaudi:
    made = Gaudi(lazy=request.param)
    install(monkeypatch, made)
    return made


def launch(device: Gaudi, kernel: str) -> Callable[[], torch.Tensor]:
    """Issues a kernel to the device; in lazy mode it runs at the step's end if its result is held until then."""
    return lambda: device.issue(torch.empty(1), lambda: torch.zeros(1), kernel)


def test_samples_are_microseconds_a_launch_without_compilation(device: Gaudi) -> None:
    samples = time_hpu([launch(device, "first"), launch(device, "second")], samples=4, rounds=3, warmups=1)
    assert samples == pytest.approx([MICROSECONDS] * 4)
    assert device.clock == pytest.approx(2 * COMPILE + MILLISECONDS * 2 * (1 + 4 * 3))


def test_compilation_is_paid_by_whoever_comes_first(device: Gaudi) -> None:
    samples = time_hpu([launch(device, "first")], samples=2, rounds=5, warmups=0)
    assert samples == pytest.approx([MICROSECONDS + COMPILE * 1000.0 / 5, MICROSECONDS])


def test_events_surround_the_launches_and_are_waited_for(device: Gaudi) -> None:
    time_hpu([launch(device, "first"), launch(device, "second")], samples=2, rounds=2, warmups=1)
    step = ["mark_step"] if device.lazy else []
    turn = ["first", *step, "second", *step]
    sample = [*step, "synchronize", "record event", *turn, *turn, "record event", "wait for event", "elapsed"]
    assert device.log == turn + sample + sample


@pytest.mark.parametrize("name", ["launches", "samples", "rounds", "warmups"])
def test_numbers_that_are_too_small_are_refused(device: Gaudi, name: str) -> None:
    numbers = {} if name == "launches" else {name: -1}
    launches = [] if name == "launches" else [launch(device, "first")]
    with pytest.raises(UsageError, match=f"{name}=(0|-1) is not allowed; expected at least (0|1)"):
        time_hpu(launches, **numbers)
    assert device.log == []


def test_time_is_not_taken_without_a_gaudi(device: Gaudi) -> None:
    device.found = False
    with pytest.raises(MissingDependencyError, match="install habana-frameworks-torch"):
        time_hpu([launch(device, "first")])
    assert device.log == []
