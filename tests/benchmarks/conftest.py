"""Fixtures of the benchmarks' tests."""

from collections.abc import Iterator

import pytest

from autotune.search_spaces.flash_attention import hopper_ranking
from benchmarks import fitted_defaults


@pytest.fixture
def nothing_ranked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let defaults of dense attention be rules, and no default be fitted to recordings."""
    monkeypatch.setattr(fitted_defaults, "FITTED", {})
    with hopper_ranking.nothing_ranked():
        yield
