"""What the worker does with a config, over a fake CUDA: whom it is at, what it says of failures, and whose they are."""

import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from autotune import hardware
from autotune.device import NVIDIA_H200
from autotune.errors import UnknownNameError
from autotune.executor import Baselines, racing, worker
from autotune.executor.messages import Turn, outcome_from_json, problem_to_json, race_from_json
from autotune.executor.problem import Problem, classify
from autotune.kernels.baselines.baseline import OverCopies
from autotune.operation import Cost
from autotune.space import Config
from autotune.trial import Conditions, Policy, Status, Timing
from tests.executor import faulty
from tests.executor.fake_cuda import FakeCuda, replace_cuda
from tests.executor.fake_keeper import FakeClock
from tests.executor.faulty import OPERATION, SHAPE, config

CONDITIONS = Conditions(sm_clock_mhz=1980)
PARTIAL = 3000  # bytes that a launch takes for a while
OUT = 32 * 16 * 2  # bytes of an output
WORKSPACE, COPY = 5000, 64


@dataclass
class SlowKernel(faulty.FaultyKernel):
    """The faulty kernel on the CPU, each launch of which takes 500 us and what its config adds."""

    cuda: FakeCuda
    baseline_error: Exception | None = None
    is_context_alive: bool = True
    is_memory_full: bool = False
    has_own_output: bool = False

    def make_inputs(self, shape: Any, *, seed: int, device: str, data: str = "normal") -> faulty.Inputs:
        if self.is_memory_full:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return super().make_inputs(shape, seed=seed, device="cpu", data=data)

    def launch(self, config: Config, inputs: faulty.Inputs, out: tuple[torch.Tensor, ...]) -> None:
        self.is_context_alive &= config["run"] != "illegal"
        self.cuda.allocate(PARTIAL)
        if self.has_own_output:  # as torch's FlexAttention
            self.cuda.allocate(OUT)
            self.cuda.allocate(-out[0].untyped_storage().nbytes())
            result = 2 * inputs.x
            out[0].set_(result.untyped_storage(), 0, result.shape, result.stride())
        else:
            super().launch(config, inputs, out)
        self.cuda.allocate(-PARTIAL)
        self.cuda.launch(500.0 + (config.integer("extra_us") if "extra_us" in config else 0))

    def baselines(self) -> "list[FakeBaseline]":
        return [
            FakeBaseline(self, "slow", 900.0),
            FakeBaseline(self, "fast", 400.0),
            FakeBaseline(self, "rare", 300.0, is_usual=False, verified_on_hardware=False),
            FakeBaseline(self, "wrong", 1.0, off_by=1.0, is_usual=False),
            FakeBaseline(self, "missing", 1.0, missing="pip install it", is_usual=False),
            FakeBaseline(self, "holding", 600.0, is_usual=False, holds=("workspace",)),
            FakeBaseline(self, "holding its output", 600.0, is_usual=False, holds=("workspace", "output")),
            FakeBaseline(self, "holding copies", 600.0, is_usual=False, holds=("workspace", "copies")),
        ]


@dataclass
class FakeBaseline:
    """One that takes so many microseconds of a fake GPU, and computes what the kernel's reference does."""

    kernel: SlowKernel
    name: str
    us: float
    missing: str | None = None
    off_by: float = 0.0
    is_usual: bool = True
    verified_on_hardware: bool = True
    holds: tuple[str, ...] = ()

    def available(self) -> str | None:
        return self.missing

    def unsupported(self, shape: Any) -> str | None:
        return None

    def prepare(self, shape: Any, inputs: faulty.Inputs) -> Callable[[], torch.Tensor]:
        out = self.kernel.reference(inputs)[0] + self.off_by
        copy = torch.empty(COPY, dtype=torch.uint8)
        sizes = {"workspace": WORKSPACE, "output": out.nbytes, "copies": COPY}
        self.kernel.cuda.allocate(sum(sizes[name] for name in self.holds))

        def run() -> torch.Tensor:
            if self.kernel.baseline_error and self.name == "fast":
                self.kernel.is_context_alive &= "hardware stack" not in str(self.kernel.baseline_error)
                raise self.kernel.baseline_error
            self.kernel.cuda.launch(self.us)
            self.kernel.cuda.allocate(PARTIAL)
            if "output" not in self.holds:
                self.kernel.cuda.allocate(out.nbytes)
            self.kernel.cuda.allocate(-PARTIAL)
            return out

        return OverCopies(run, (copy,)) if "copies" in self.holds else run


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> SlowKernel:
    cuda = replace_cuda(monkeypatch)
    monkeypatch.setattr(hardware, "current_device", lambda: NVIDIA_H200)
    monkeypatch.setattr(hardware.Watch, "__init__", lambda self, own_pid: None)
    monkeypatch.setattr(hardware.Watch, "end", lambda self: CONDITIONS)
    slow = SlowKernel(cuda)
    monkeypatch.setattr(hardware, "is_context_alive", lambda: slow.is_context_alive)
    return slow


@pytest.fixture
def problem(kernel: SlowKernel) -> Problem:
    return Problem(OPERATION, kernel, SHAPE, Policy(), own_pid=1)  # type: ignore[arg-type]


def race(problem: Problem, *configs: Config, baselines: Baselines = "fastest") -> tuple[Any, list[Turn]]:
    """The race or what it raised, and whom it said it was at."""
    said: list[Turn] = []
    try:
        found: Any = problem.race(list(configs), seconds=0.0, baselines=baselines, announce=said.append)
    except Exception as error:
        found = error
    return found, said


def test_a_fine_config_has_an_error_a_time_and_conditions(problem: Problem) -> None:
    outcome = problem.screen(config(), early_stop=True)
    assert (outcome.status, outcome.conditions) == (Status.OK, CONDITIONS)
    assert outcome.timing is not None
    assert outcome.timing.median_us == pytest.approx(500.0)
    assert outcome.error is not None
    assert outcome.judge_seconds is not None


def test_a_config_far_behind_is_slow_unless_all_is_measured(problem: Problem) -> None:
    for early_stop, extra_us, status in (
        (True, 0, "ok"),
        (True, 400, "slow"),
        (True, 5000, "slow"),
        (False, 5000, "ok"),
    ):
        outcome = problem.screen(config(extra_us=extra_us), early_stop=early_stop)
        assert outcome.status == status
        assert outcome.timing is not None
        assert outcome.timing.median_us == pytest.approx(500.0 + extra_us)


def test_a_race_says_whom_it_is_at_and_refuses_in_place(problem: Problem) -> None:
    entrants = (config(extra_us=9), config(run="raise"), config(run="wrong"), config())
    found, said = race(problem, *entrants)
    assert [outcome.config for outcome in found.outcomes] == list(entrants)
    assert [outcome.status for outcome in found.outcomes] == [
        *(Status.OK, Status.LAUNCH_ERROR, Status.WRONG_RESULT, Status.OK),
    ]
    assert [outcome.conditions for outcome in found.outcomes if outcome.timing] == [CONDITIONS, CONDITIONS]
    assert [baseline.name for baseline in found.baselines] == ["fast"]
    assert said[:5] == [None, 0, 1, 2, 3]  # the reference, the checks
    assert said[5:8] == ["slow", "fast", None]
    assert said[8:11] == [0, 3, "fast"]  # warmed up: the two that are left, and a baseline
    assert set(said[11:-1]) == {0, 3, "fast"}
    assert said[-1] is None


def test_a_race_that_nobody_is_left_to_run_ends_with_its_verdicts(problem: Problem) -> None:
    found, said = race(problem, config(run="wrong"), config(run="raise"))
    assert [outcome.status for outcome in found.outcomes] == [Status.WRONG_RESULT, Status.LAUNCH_ERROR]
    assert (found.baselines, said) == ((), [None, 0, 1])


@pytest.mark.parametrize("baselines", ["every", ["slow", "rare"], [], "fastest", "none"], ids=str)
def test_the_seconds_of_a_comparison_begin_when_all_are_ready(
    problem: Problem, kernel: SlowKernel, monkeypatch: pytest.MonkeyPatch, baselines: Baselines
) -> None:
    clock, launch, given = FakeClock(), kernel.cuda.launch, list[float]()

    def take_a_second(microseconds: float) -> None:
        clock.now += 1.0
        launch(microseconds)

    def measure(stopwatches: Sequence[Any], *, seconds: float, **_: Any) -> list[Timing]:
        given.append(seconds)
        return [Timing(500.0, 499.0, 501.0, 15)] * len(stopwatches)

    monkeypatch.setattr(kernel.cuda, "launch", take_a_second)
    monkeypatch.setattr("autotune.executor.problem.time", clock)
    monkeypatch.setattr("autotune.executor.problem.race", measure)
    started = clock.now
    problem.race([config()], seconds=100.0, baselines=baselines, announce=lambda turn: None)
    spent = clock.now - started
    assert spent > 3.0
    assert given == [100.0 - spent if baselines in ("fastest", "none") else 100.0]


def test_the_memory_of_a_config_is_measured_at_its_turn(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("autotune.executor.problem.extra_bytes", fail)
    error, said = race(problem, config(run="wrong"), config(), config(extra_us=9), baselines=["slow"])
    assert "illegal memory access" in str(error)
    assert said == [None, 0, 1]


def test_a_refused_config_has_a_place_and_no_memory(problem: Problem) -> None:
    found, _ = race(problem, config(), config(run="wrong"), config(extra_us=9), baselines=["slow"])
    assert found.extra_bytes == (PARTIAL, None, PARTIAL)


def test_every_baseline_is_measured_if_asked(problem: Problem, kernel: SlowKernel) -> None:
    found, _ = race(problem, config(), baselines="every")
    assert [(baseline.name, baseline.timing is not None, baseline.message) for baseline in found.baselines] == [
        ("slow", True, ""),
        ("fast", True, ""),
        ("rare", True, ""),
        ("wrong", False, found.baselines[3].message),
        ("missing", False, "pip install it"),
        ("holding", True, ""),
        ("holding its output", True, ""),
        ("holding copies", True, ""),
    ]
    assert found.baselines[3].message.startswith("BaselineUnavailableError: largest error 1 exceeds 4 times")
    assert [baseline.verified_on_hardware for baseline in found.baselines[:3]] == [True, True, False]
    assert race(problem, config(), baselines="none")[0].baselines == ()


def test_baselines_are_chosen_by_name_and_measured_beside_the_config(problem: Problem) -> None:
    found, _ = race(problem, config(), baselines=["rare", "slow"])
    assert [baseline.name for baseline in found.baselines] == ["slow", "rare"]  # in the kernel's order
    slow = found.baselines[0]
    assert slow.timing.median_us == pytest.approx(900.0)
    assert slow.error == 0.0
    assert slow.error_limit > 0.0
    assert (slow.extra_bytes, found.extra_bytes) == (PARTIAL, (PARTIAL,))


def test_what_a_baseline_holds_between_calls_is_its_memory_but_for_copies_and_its_result(problem: Problem) -> None:
    names = ("holding", "holding its output", "holding copies")
    found, _ = race(problem, config(), baselines=names)
    memory = {baseline.name: baseline.extra_bytes for baseline in found.baselines}
    assert memory == dict.fromkeys(names, WORKSPACE + PARTIAL)
    found, _ = race(problem, config())
    assert [baseline.extra_bytes for baseline in found.baselines] == [None]  # a search asks for no memory


def test_an_output_that_a_launch_allocates_counts_once(problem: Problem, kernel: SlowKernel) -> None:
    kernel.has_own_output = True
    found, _ = race(problem, config(), baselines="every")
    assert (found.outcomes[0].status, found.extra_bytes) == (Status.OK, (PARTIAL,))


def test_a_baseline_faster_than_the_hardware_can_be_has_no_time(problem: Problem) -> None:
    problem._cost = Cost(flops=450 * 10**9, bytes=1)  # 900 TFLOP/s in 500 us, 1125 in 400 us
    reason = "implausible time of 400 us: 1125 TFLOP/s exceeds the 990 of NVIDIA H200"
    wanted: list[Baselines] = [("slow", "fast"), "fastest"]
    for baselines in wanted:
        found, _ = race(problem, config(), baselines=baselines)
        told = {baseline.name: baseline for baseline in found.baselines}
        assert told.keys() == {"fast", "slow"}
        assert (told["fast"].timing, told["fast"].message) == (None, reason)
        assert found.fastest_baseline.name == "slow"
        assert found.outcomes[0].status is Status.OK


def test_a_bare_name_is_no_collection_of_names() -> None:
    """mypy says so here, and that it need not be told where it does not."""
    given: list[Baselines] = ["none", ["slow"], ("slow",), frozenset({"slow"}), {"slow": 1}]
    given.append("slow")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="baselines='slow' is unknown; allowed: none, fastest, every, or a list"):
        racing.race(Mock(), [config()], seconds=0.0, baselines=given[-1], patience=1.0)


def test_a_baseline_that_refuses_is_named_and_the_rest_are_raced(problem: Problem, kernel: SlowKernel) -> None:
    kernel.baseline_error = TypeError("no kernel for this shape")
    found, _ = race(problem, config(), baselines=["slow", "fast"])
    assert found.outcomes[0].status is Status.OK
    assert [(baseline.name, baseline.message) for baseline in found.baselines] == [
        ("slow", ""),
        ("fast", "TypeError: no kernel for this shape"),
    ]


def test_who_breaks_the_context_is_the_last_that_was_named(problem: Problem, kernel: SlowKernel) -> None:
    error, said = race(problem, config(), config(run="illegal"), config())
    assert "illegal memory access" in str(error)
    assert said == [None, 0, 1]
    kernel.is_context_alive = True  # of another worker
    kernel.baseline_error = RuntimeError("CUDA error: hardware stack error")
    error, said = race(problem, config())
    assert error is kernel.baseline_error
    assert said[-1] == "fast"


def test_what_broke_the_context_is_illegal_whatever_it_says(problem: Problem, kernel: SlowKernel) -> None:
    error = RuntimeError("Triton Error [CUDA]: operation not supported on global/shared address space")
    assert classify(error) is Status.LAUNCH_ERROR
    kernel.is_context_alive = False
    assert classify(error) is Status.ILLEGAL_ACCESS


# The worker's answers


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
