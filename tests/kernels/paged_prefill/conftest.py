"""What the tests of paged prefill share: a process in which Triton interprets."""

from collections.abc import Iterator

import pytest

from tests.kernels.conftest import Interpreter, interpret


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """Runs a task of ``tests.kernels.paged_prefill.interpreter`` in its process."""
    yield from interpret("tests.kernels.paged_prefill.interpreter")
