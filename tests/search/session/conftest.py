"""A store of its own for each test of a search."""

from pathlib import Path

import pytest

from autotune.table import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)
