"""Settings of all tests."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

# No test measures time: a machine under load takes longer than any deadline once in ten thousand examples.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def nothing_ranked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let defaults of dense attention be rules, and no default be fitted to recordings."""
    from autotune.search_spaces.flash_attention import hopper_ranking
    from benchmarks import fitted_defaults

    monkeypatch.setattr(fitted_defaults, "FITTED", {})
    with hopper_ranking.nothing_ranked():
        yield
