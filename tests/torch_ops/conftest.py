"""Untuned kernels for all tests of the ops that run in this process."""

from collections.abc import Iterator

import pytest

from tests.torch_ops.calls import untuned


@pytest.fixture
def serving() -> Iterator[None]:
    with untuned():
        yield
