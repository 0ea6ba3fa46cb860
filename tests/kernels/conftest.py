"""What the tests of kernels share: a process in which Triton interprets."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autotune.executor.child import Child

ANSWER_SECONDS = 120

Interpreter = Callable[..., Any]


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """Runs a task of ``tests.kernels.interpreter`` in its process, which lives as long as pytest's worker."""
    child = Child("tests.kernels.interpreter", environment={"TRITON_INTERPRET": "1"})

    def run(task: str, *arguments: object) -> Any:
        child.send({"task": task, "arguments": arguments})
        reply = child.receive(ANSWER_SECONDS)
        assert reply is not None, f"no answer within {ANSWER_SECONDS} s"
        assert "raised" not in reply, reply.get("raised")
        return reply["answer"]

    yield run
    child.close()
