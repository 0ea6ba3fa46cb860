"""Intel's bridge between torch and Gaudi (``habana_frameworks.torch``), looked for, never required; times on a Gaudi.

Names, behaviour and the order of calls are those of the bridge's sources (HabanaAI/gaudi-pytorch-bridge) and of Intel's
"Python Packages" page (docs.habana.ai; Event APIs); not verified on hardware.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.errors import MissingDependencyError, UsageError

Launch = Callable[[], object]
INSTALL: Final = (
    "install habana-frameworks-torch, with the Gaudi driver, by Intel's installer or container images "
    "(docs.habana.ai, Installation Guide); it is not on PyPI"
)


def missing() -> str | None:
    """Return what keeps this process from a Gaudi, in one line, or None; never raises."""
    try:
        find_fused_sdpa()
        is_lazy()
        found = hpu().is_available()
    except Exception as error:  # a bridge that does not fit its torch or driver fails with more than ImportError
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return f"habana_frameworks.torch does not load ({reason}): {INSTALL}"
    return None if found else f"torch.hpu finds no Gaudi: {INSTALL}"


def require() -> None:
    """Raise MissingDependencyError where ``missing`` has a reason."""
    if (reason := missing()) is not None:
        raise MissingDependencyError(reason)


def hpu() -> Any:
    """Return ``torch.hpu``, which exists once the bridge was imported."""
    return torch.hpu  # type: ignore[attr-defined]


def find_fused_sdpa() -> Any:
    """Return the class whose ``apply`` is the fused attention."""
    from habana_frameworks.torch.hpex.kernels import FusedSDPA

    return FusedSDPA


def is_lazy() -> bool:
    """Return if operations are collected until ``mark_step``; the environment decides, and the default has changed."""
    from habana_frameworks.torch.utils import internal

    return bool(internal.is_lazy())


def step_marker() -> Callable[[], None]:
    """Return the end of a step: ``mark_step`` in lazy mode, nothing in eager mode, where the bridge's own only warns.

    Lazy mode computes what somebody still holds when the step ends: keep the result until then.
    """
    if not is_lazy():
        return lambda: None
    from habana_frameworks.torch import core

    mark_step: Callable[[], None] = core.mark_step
    return mark_step


def graphed(call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Return ``call`` as an HPU graph, recorded by its first run and replayed by the others; in lazy mode alone.

    It takes no tensors, because replay would first copy each of them into the graph's own.
    """
    replay: Callable[[], torch.Tensor] = hpu().wrap_in_hpu_graph_func(call)
    return replay


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
    require()
    end_step = step_marker()
    for _ in range(warmups):
        _run(launches, end_step)
    return [_sample_us(launches, rounds, end_step) for _ in range(samples)]


def _sample_us(launches: Sequence[Launch], rounds: int, end_step: Callable[[], None]) -> float:
    start, stop = (hpu().Event(enable_timing=True) for _ in range(2))
    end_step()  # in lazy mode an event would be recorded before what was collected earlier
    hpu().synchronize()
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
