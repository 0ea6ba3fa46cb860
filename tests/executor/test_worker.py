"""What the worker answers to its parent, over a fake CUDA."""

import io
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from autotune.executor import worker
from autotune.executor.messages import outcome_from_json, problem_to_json, race_from_json
from autotune.executor.problem import Problem
from autotune.trial import Policy, Status
from tests.executor.faulty import OPERATION, SHAPE, config
from tests.executor.slow_kernel import SlowKernel


@pytest.fixture
def served(kernel: SlowKernel, monkeypatch: pytest.MonkeyPatch) -> SlowKernel:
    """The kernel as the worker finds it."""
    monkeypatch.setattr(worker, "open_problem", lambda data: (OPERATION, kernel, SHAPE))
    monkeypatch.setattr(os, "_exit", lambda code: None)
    return kernel


def ask(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[dict[str, Any]]]:
    """What it returned, and the messages it sent."""
    stream = io.BytesIO()
    returned = function(*arguments, stream)
    return returned, [json.loads(line) for line in stream.getvalue().splitlines()]


def open_problem() -> tuple[Problem | None, list[dict[str, Any]]]:
    request = {"number": 3, "problem": problem_to_json(OPERATION, SHAPE)}
    return ask(worker.open_requested, request, Policy(), 1)


def test_the_worker_answers_as_its_parent_expects(served: SlowKernel) -> None:
    opened, said = open_problem()
    assert said == [{"opened": True, "number": 3}]
    _, (answer,) = ask(worker.screen, opened, {"configs": [dict(config())], "early_stop": True})
    assert outcome_from_json(answer["outcome"]).status is Status.OK
    _, (answer,) = ask(worker.screen, opened, {"configs": [dict(config(run="illegal"))], "early_stop": True})
    outcome = outcome_from_json(answer["outcome"])
    assert (outcome.config, outcome.status) == (config(run="illegal"), Status.ILLEGAL_ACCESS)
    request = {
        "configs": [dict(config()), dict(config(extra_us=9))],
        "seconds": 0.0,
        "baselines": "fastest",
        "without": [],
    }
    _, (*progress, answer) = ask(worker.race, opened, request)
    assert progress[:3] == [{"working_on": None}, {"working_on": 0}, {"working_on": 1}]
    assert [outcome.status for outcome in race_from_json(answer["race"]).outcomes] == [Status.OK, Status.OK]
    request["configs"] = [dict(config(run="illegal"))]
    _, (*progress, answer) = ask(worker.race, opened, request)
    assert progress[-1] == {"working_on": 0}
    assert (answer["status"], "illegal memory access" in answer["message"]) == ("illegal_access", True)


def test_the_worker_says_what_cannot_be_opened(served: SlowKernel) -> None:
    opened, _ = open_problem()
    served.is_memory_full = True
    message = "OutOfMemoryError: CUDA out of memory. Tried to allocate"
    assert open_problem() == (None, [{"unopened": message, "number": 3}])
    request = {"configs": [dict(config())], "seconds": 0.0, "baselines": "fastest", "without": []}
    assert ask(worker.race, opened, request)[1] == [{"working_on": None}, {"unopened": message}]
