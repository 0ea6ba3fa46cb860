"""Fixtures of the dispatch tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dispatch.tables import Tables, served_from


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    with served_from(Tables(tmp_path)) as tables:
        yield tables
