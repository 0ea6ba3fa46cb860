"""Intel's bridge between torch and Gaudi (``habana_frameworks.torch``): looked for, never required.

Names and behaviour are those of the bridge's sources (HabanaAI/gaudi-pytorch-bridge) and of Intel's "Python Packages"
page (docs.habana.ai); not verified on hardware.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

from autotune.errors import MissingDependencyError

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
    reason = missing()
    if reason is not None:
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
