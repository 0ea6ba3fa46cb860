"""Which trial is next, and which config wins."""

from autotune.search.offline import Confirmation, compile_all, confirm
from autotune.search.session import Limits, Observer, SearchResult, Silent, search

__all__ = ["Confirmation", "Limits", "Observer", "SearchResult", "Silent", "compile_all", "confirm", "search"]
