"""What the worker does with a config, over a fake CUDA: whom it is at, what it says of failures, and whose they are."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
from triton.runtime.errors import OutOfResources, PTXASError

from autotune import hardware
from autotune.executor import Baselines
from autotune.executor.messages import Turn
from autotune.executor.problem import Problem, classify
from autotune.operation import Cost
from autotune.space import Config
from autotune.trial import Policy, Status, Timing
from tests.executor.fake_keeper import FakeClock
from tests.executor.faulty import OPERATION, SHAPE, config
from tests.executor.slow_kernel import CONDITIONS, PARTIAL, WORKSPACE, SlowKernel


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


def test_float32_is_held_against_six_products_of_bfloat16_and_a_baseline_is_too(kernel: SlowKernel) -> None:
    """They reach 164.9 TFLOP/s at most: a config that takes 500 us and a baseline of 400 us, below it and above."""
    problem = Problem(OPERATION, kernel, replace(SHAPE, dtype="float32"), Policy(), own_pid=1)  # type: ignore[arg-type]
    problem._cost = Cost(flops=60 * 10**9, bytes=1)  # 120 TFLOP/s, and 150
    assert problem.screen(config(), early_stop=True).status is Status.OK
    found, _ = race(problem, config(), baselines=["fast"])
    assert [(each.timing is not None, each.message) for each in found.baselines] == [(True, "")]
    problem._cost = Cost(flops=80 * 10**9, bytes=1)  # 160 TFLOP/s, and 200
    found, _ = race(problem, config(), baselines=["fast"])
    assert found.outcomes[0].status is Status.OK
    reason = "implausible time of 400 us: 200 TFLOP/s exceeds the 165 of NVIDIA H200"
    assert [(each.timing, each.message) for each in found.baselines] == [(None, reason)]
    problem._cost = Cost(flops=90 * 10**9, bytes=1)  # 180 TFLOP/s
    outcome = problem.screen(config(), early_stop=True)
    assert (outcome.status, outcome.message) == (Status.IMPLAUSIBLE, "180 TFLOP/s exceeds the 165 of NVIDIA H200")


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


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OutOfResources(262144, 232448, "shared memory"), Status.OUT_OF_RESOURCES),
        (triton.TritonError("torch refuses to compile it"), Status.COMPILE_ERROR),
        (PTXASError("no such instruction"), Status.COMPILE_ERROR),
        (torch.cuda.OutOfMemoryError("out of memory"), Status.OUT_OF_MEMORY),
        (RuntimeError("PassManager::run failed"), Status.COMPILE_ERROR),
        (RuntimeError("the launch failed"), Status.LAUNCH_ERROR),
    ],
)
def test_a_refusal_where_it_is_launched_has_its_status(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: Status
) -> None:
    monkeypatch.setattr(hardware, "is_context_alive", lambda: True)
    assert classify(error) is status
