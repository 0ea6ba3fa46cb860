"""What the tests of paged decode share: a process in which Triton interprets."""

from collections.abc import Iterator
from typing import Any

import pytest

from autotune.executor.child import Child
from tests.kernels.conftest import ANSWER_SECONDS, Interpreter


def interpret(module: str) -> Iterator[Interpreter]:
    """Yields what runs a task of that module in its process, which lives until the generator is closed."""
    child = Child(module, environment={"TRITON_INTERPRET": "1"})

    def run(task: str, *arguments: object) -> Any:
        child.send({"task": task, "arguments": arguments})
        reply = child.receive(ANSWER_SECONDS)
        assert reply is not None, f"no answer within {ANSWER_SECONDS} s"
        assert "raised" not in reply, reply.get("raised")
        return reply["answer"]

    yield run
    child.close()


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """Runs a task of ``tests.kernels.paged_decode.interpreter`` in its process."""
    yield from interpret("tests.kernels.paged_decode.interpreter")
