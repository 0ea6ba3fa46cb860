"""What the tests of one search share: a store of their own."""

from pathlib import Path

import pytest

from autotune.table import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)
