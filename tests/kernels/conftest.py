"""What the tests of kernels share: a process in which Triton interprets."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autotune.executor.child import Child

ANSWER_SECONDS = 120

Interpreter = Callable[..., Any]


def interpret(module: str) -> Iterator[Interpreter]:
    """Yields what runs a task of that module in a process of its own, which lives until the generator is closed."""
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
    """Runs a task of ``tests.kernels.interpreter`` in its process, which lives as long as pytest's worker."""
    yield from interpret("tests.kernels.interpreter")
