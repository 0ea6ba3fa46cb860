"""Which trial is next, and which config wins."""

from autotune.search.offline import Confirmation, compile_all, confirm
from autotune.search.proposals import DEFAULT_SAMPLER, SAMPLERS, Sampler
from autotune.search.session import Ending, Limits, Observer, SearchResult, Silent, search

__all__ = [
    "DEFAULT_SAMPLER",
    "SAMPLERS",
    "Confirmation",
    "Ending",
    "Limits",
    "Observer",
    "Sampler",
    "SearchResult",
    "Silent",
    "compile_all",
    "confirm",
    "search",
]
