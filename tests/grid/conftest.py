"""The engine over a fake cluster, whose nodes answer at once."""

import pytest

from autotune.grid import ray_engine
from tests.grid import recorded_grid


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the nodes before each answer."""
    recorded_grid.install(monkeypatch)
    monkeypatch.setattr(ray_engine, "LOOK_SECONDS", 0.0)
