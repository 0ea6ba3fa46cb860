"""The worker answers its parent, over a fake CUDA."""

import io
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
import triton

from autotune.executor import Race, worker_answers
from autotune.executor.harness import Harness
from autotune.executor.messages import (
    MachineFault,
    Message,
    Opened,
    OpenProblem,
    RaceFailed,
    RunRace,
    Screen,
    Unopened,
    WorkingOn,
    decode,
    refer_to_problem,
)
from autotune.trial import Outcome, Policy, Status
from tests.executor.faulty import OPERATION, SHAPE, candidate
from tests.executor.slow_kernel import SlowKernel


@pytest.fixture
def served(kernel: SlowKernel, monkeypatch: pytest.MonkeyPatch) -> SlowKernel:
    """The kernel as the worker finds it."""
    monkeypatch.setattr(os, "_exit", lambda code: None)
    return kernel


def ask(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[Message]]:
    """Return its result, and the messages it sent."""
    stream = io.BytesIO()
    returned = function(*arguments, stream)
    return returned, [decode(json.loads(line)) for line in stream.getvalue().splitlines()]


def open_problem() -> tuple[Harness | None, list[Message]]:
    return ask(worker_answers.answer_opening, OpenProblem(3, refer_to_problem(OPERATION, SHAPE)), Policy(), 0, 1)


def test_the_worker_answers_as_its_parent_expects(served: SlowKernel) -> None:
    harness, said = open_problem()
    assert said == [Opened(3)]
    _, (answer,) = ask(worker_answers.answer_screening, harness, Screen(candidate(), early_stop=True))
    assert isinstance(answer, Outcome)
    assert answer.status is Status.OK
    _, (answer,) = ask(worker_answers.answer_screening, harness, Screen(candidate(run="illegal"), early_stop=True))
    assert isinstance(answer, Outcome)
    assert (answer.candidate, answer.status) == (candidate(run="illegal"), Status.ILLEGAL_ACCESS)
    request = RunRace((candidate(), candidate(extra_us=9)), 0.0, "fastest")
    _, (*progress, answer) = ask(worker_answers.answer_race, harness, request)
    assert progress[:3] == [WorkingOn(None), WorkingOn(0), WorkingOn(1)]
    assert isinstance(answer, Race)
    assert [outcome.status for outcome in answer.outcomes] == [Status.OK, Status.OK]
    _, (*progress, answer) = ask(
        worker_answers.answer_race, harness, RunRace((candidate(run="illegal"),), 0.0, ("slow",))
    )
    assert progress[-1] == WorkingOn(0)
    assert isinstance(answer, RaceFailed)
    assert (answer.status, "illegal memory access" in answer.message) == (Status.ILLEGAL_ACCESS, True)


def test_the_worker_says_what_cannot_be_opened(served: SlowKernel) -> None:
    harness, _ = open_problem()
    served.is_memory_full = True
    message = "OutOfMemoryError: CUDA out of memory. Tried to allocate"
    assert open_problem() == (None, [Unopened(message, 3)])
    request = RunRace((candidate(),), 0.0, "fastest")
    assert ask(worker_answers.answer_race, harness, request)[1] == [WorkingOn(None), Unopened(message)]


def test_the_worker_tells_a_fault_of_the_machine_from_a_verdict(
    served: SlowKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    harness, _ = open_problem()
    monkeypatch.setattr(served, "launch", fail)
    fault = MachineFault("OSError: [Errno 28] No space left on device")
    assert ask(worker_answers.answer_screening, harness, Screen(candidate(), early_stop=True))[1] == [fault]
    assert ask(worker_answers.answer_race, harness, RunRace((candidate(),), 0.0, "none"))[1][-1] == fault


def test_a_driver_that_cannot_be_built_is_left_to_the_first_launch_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        asked = False

        @property
        def active(self) -> Any:
            self.asked = True
            raise RuntimeError("0 active drivers ([]). There should only be one.")

    broken = Broken()
    monkeypatch.setattr(triton.runtime, "driver", broken)
    worker_answers.load_driver()
    assert broken.asked
