"""Searches: the next trial, the races, and the winner."""

import importlib
from typing import TYPE_CHECKING, Any

from autotune.search.result import Ending, ImplementationResult, Limits, SearchResult
from autotune.search.sampler import DEFAULT_SAMPLER, SAMPLERS, Sampler, read_sampler

if TYPE_CHECKING:
    from autotune.search.observer import Observer
    from autotune.search.offline import Confirmation, compile_all, confirm, finalists_for
    from autotune.search.session import search

__all__ = [
    "DEFAULT_SAMPLER",
    "SAMPLERS",
    "Confirmation",
    "Ending",
    "ImplementationResult",
    "Limits",
    "Observer",
    "Sampler",
    "SearchResult",
    "compile_all",
    "confirm",
    "finalists_for",
    "read_sampler",
    "search",
]

# By their modules, imported on first use: they load Optuna and what compiles, and a plan of a grid searches nothing.
_LATER = {
    "Observer": "autotune.search.observer",
    **dict.fromkeys(("Confirmation", "compile_all", "confirm", "finalists_for"), "autotune.search.offline"),
    "search": "autotune.search.session",
}


def __getattr__(name: str) -> Any:
    """Import what searches on first use, and keep it."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value
