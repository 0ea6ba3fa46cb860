"""Which trial is next, and which config wins."""

from autotune.search.session import Limits, Observer, SearchResult, Silent, search

__all__ = ["Limits", "Observer", "SearchResult", "Silent", "search"]
