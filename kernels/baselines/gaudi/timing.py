"""Measurement of times on a Gaudi: events about a sequence of launches, each of which is a step in lazy mode.

Not verified on hardware: the order of the calls is that of Intel's documentation (docs.habana.ai, "Python Packages",
Event APIs) and of the bridge's sources, and is what the tests look at.
"""

from collections.abc import Callable, Sequence

from autotune.errors import UsageError
from autotune.kernels.baselines.gaudi import bridge

Launch = Callable[[], object]


def time_hpu(launches: Sequence[Launch], *, samples: int = 20, rounds: int = 10, warmups: int = 3) -> list[float]:
    """Measure microseconds a launch, one for each sample: ``rounds`` times all launches, in turn, between two events.

    Several launches of one problem, over inputs of their own, keep each other's out of the caches. The warm-up pays
    for the graph's compilation, which takes seconds for every new shape. In lazy mode every launch ends its step: a
    result that nobody holds at ``mark_step`` is not computed, and one step of equal launches may compute them once. A
    launch that takes less time than Python needs to issue it is therefore to be an HPU graph's replay.

    Raises:
        MissingDependencyError: the bridge or a Gaudi is absent.
        UsageError: there is no launch, or a number is too small.
    """
    for name, value in {"launches": len(launches), "samples": samples, "rounds": rounds, "warmups": warmups}.items():
        if value < (least := 0 if name == "warmups" else 1):
            raise UsageError(f"{name}={value} is not allowed; expected at least {least}")
    bridge.require()
    end_step = bridge.step_marker()
    for _ in range(warmups):
        _run(launches, end_step)
    return [_sample_us(launches, rounds, end_step) for _ in range(samples)]


def _sample_us(launches: Sequence[Launch], rounds: int, end_step: Callable[[], None]) -> float:
    hpu = bridge.hpu()
    start, stop = (hpu.Event(enable_timing=True) for _ in range(2))
    end_step()  # in lazy mode an event would be recorded before what was collected earlier
    hpu.synchronize()
    start.record()
    for _ in range(rounds):
        _run(launches, end_step)
    stop.record()
    stop.synchronize()
    milliseconds: float = start.elapsed_time(stop)
    return milliseconds * 1000.0 / (rounds * len(launches))


def _run(launches: Sequence[Launch], end_step: Callable[[], None]) -> None:
    for launch in launches:
        result = launch()
        end_step()
        del result  # held until its step ended
