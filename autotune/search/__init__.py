"""Searches: the next trial, the races, and the winner."""

from autotune.search.observer import Observer
from autotune.search.offline import Confirmation, compile_all, confirm, finalists_for
from autotune.search.proposals import DEFAULT_SAMPLER, SAMPLERS, Sampler
from autotune.search.result import Ending, ImplementationResult, Limits, SearchResult
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
    "search",
]
