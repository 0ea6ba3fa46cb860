"""The worker judges candidates over a fake CUDA: it announces each step, and failures have their statuses."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
from triton.runtime.errors import OutOfResources, PTXASError

from autotune import registry
from autotune.errors import is_toolchain_refusal
from autotune.executor import Baselines
from autotune.executor.harness import Harness, UnopenedError
from autotune.executor.messages import Entrant
from autotune.executor.worker_race import race_entrants
from autotune.operation import Cost
from autotune.trial import Candidate, Outcome, Policy, Status, Timing
from tests.executor.fake_keeper import FakeClock
from tests.executor.faulty import IN_PLACE, OPERATION, OURS, SHAPE, candidate
from tests.executor.slow_kernel import CONDITIONS, PARTIAL, WORKSPACE, SlowKernel


@pytest.fixture
def harness(kernel: SlowKernel) -> Harness:
    return Harness(OPERATION, SHAPE, Policy(), own_pid=1)


def race(harness: Harness, *candidates: Candidate, baselines: Baselines = "fastest") -> tuple[Any, list[Entrant]]:
    """The race or what it raised, and what it announced."""
    said: list[Entrant] = []
    try:
        found: Any = race_entrants(harness, candidates, seconds=0.0, baselines=baselines, announce=said.append)
    except Exception as error:
        found = error
    return found, said


def screen(harness: Harness, wanted: Candidate, *, early_stop: bool, said: list[Entrant] | None = None) -> Outcome:
    announce = (said if said is not None else []).append
    return harness.screen(wanted, early_stop=early_stop, announce=announce)


def test_a_fine_config_has_an_error_a_time_and_conditions(harness: Harness) -> None:
    outcome = screen(harness, candidate(), early_stop=True)
    assert (outcome.status, outcome.conditions) == (Status.OK, CONDITIONS)
    assert outcome.timing is not None
    assert outcome.timing.median_us == pytest.approx(500.0)
    assert outcome.error is not None
    assert outcome.judge_seconds is not None


def test_a_config_far_behind_is_slow_unless_all_is_measured(harness: Harness) -> None:
    for early_stop, extra_us, status in (
        (True, 0, "ok"),
        (True, 400, "slow"),
        (True, 5000, "slow"),
        (False, 5000, "ok"),
    ):
        outcome = screen(harness, candidate(extra_us=extra_us), early_stop=early_stop)
        assert outcome.status == status
        assert outcome.timing is not None
        assert outcome.timing.median_us == pytest.approx(500.0 + extra_us)


def test_a_race_says_whom_it_is_at_and_refuses_in_place(harness: Harness) -> None:
    entrants = (candidate(extra_us=9), candidate(run="raise"), candidate(run="wrong"), candidate())
    found, said = race(harness, *entrants)
    assert [outcome.candidate for outcome in found.outcomes] == list(entrants)
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


def test_a_race_without_entrants_ends_with_its_verdicts(harness: Harness) -> None:
    found, said = race(harness, candidate(run="wrong"), candidate(run="raise"))
    assert [outcome.status for outcome in found.outcomes] == [Status.WRONG_RESULT, Status.LAUNCH_ERROR]
    assert (found.baselines, said) == ((), [None, 0, 1])


@pytest.mark.parametrize("baselines", ["every", ["slow", "rare"], [], "fastest", "none"], ids=str)
@pytest.mark.slow
def test_the_seconds_of_a_comparison_begin_when_all_are_ready(
    harness: Harness, kernel: SlowKernel, monkeypatch: pytest.MonkeyPatch, baselines: Baselines
) -> None:
    clock, launch, given = FakeClock(), kernel.cuda.launch, list[float]()

    def take_a_second(microseconds: float) -> None:
        clock.now += 1.0
        launch(microseconds)

    def measure(stopwatches: Sequence[Any], *, seconds: float, **_: Any) -> list[Timing]:
        given.append(seconds)
        return [Timing(500.0, 499.0, 501.0, 15)] * len(stopwatches)

    monkeypatch.setattr(kernel.cuda, "launch", take_a_second)
    monkeypatch.setattr("autotune.executor.worker_race.time", clock)
    monkeypatch.setattr("autotune.executor.worker_race.race", measure)
    started = clock.now
    race_entrants(harness, [candidate()], seconds=100.0, baselines=baselines, announce=lambda entrant: None)
    spent = clock.now - started
    assert spent > 3.0
    assert given == [100.0 - spent if baselines in ("fastest", "none") else 100.0]


def test_the_memory_of_a_config_is_measured_at_its_turn(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("autotune.executor.worker_race.extra_bytes", fail)
    error, said = race(harness, candidate(run="wrong"), candidate(), candidate(extra_us=9), baselines=["slow"])
    assert "illegal memory access" in str(error)
    assert said == [None, 0, 1]


def test_a_refused_config_has_a_place_and_no_memory(harness: Harness) -> None:
    found, _ = race(harness, candidate(), candidate(run="wrong"), candidate(extra_us=9), baselines=["slow"])
    assert found.extra_bytes == (PARTIAL, None, PARTIAL)


@pytest.mark.slow
def test_every_baseline_is_measured_if_asked(harness: Harness, kernel: SlowKernel) -> None:
    found, _ = race(harness, candidate(), baselines="every")
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
    assert race(harness, candidate(), baselines="none")[0].baselines == ()


@pytest.mark.slow
def test_baselines_are_chosen_by_name_and_measured_beside_the_config(harness: Harness) -> None:
    found, _ = race(harness, candidate(), baselines=["rare", "slow"])
    assert [baseline.name for baseline in found.baselines] == ["slow", "rare"]  # in the kernel's order
    slow = found.baselines[0]
    assert slow.timing.median_us == pytest.approx(900.0)
    assert slow.error == 0.0
    assert slow.error_limit > 0.0
    assert (slow.extra_bytes, found.extra_bytes) == (PARTIAL, (PARTIAL,))


@pytest.mark.slow
def test_what_a_baseline_holds_between_calls_is_its_memory_but_for_copies_and_its_result(harness: Harness) -> None:
    names = ("holding", "holding its output", "holding copies")
    found, _ = race(harness, candidate(), baselines=names)
    memory = {baseline.name: baseline.extra_bytes for baseline in found.baselines}
    assert memory == dict.fromkeys(names, WORKSPACE + PARTIAL)
    found, _ = race(harness, candidate())
    assert [baseline.extra_bytes for baseline in found.baselines] == [None]  # a search asks for no memory


@pytest.mark.slow
def test_an_output_that_a_launch_allocates_counts_once(harness: Harness, kernel: SlowKernel) -> None:
    kernel.has_own_output = True
    found, _ = race(harness, candidate(), baselines="every")
    assert (found.outcomes[0].status, found.extra_bytes) == (Status.OK, (PARTIAL,))


def test_a_baseline_faster_than_the_hardware_can_be_has_no_time(harness: Harness) -> None:
    harness.cost = Cost(flops=450 * 10**9, bytes=1)  # 900 TFLOP/s in 500 us, 1125 in 400 us
    reason = "implausible time of 400 us: 1125 TFLOP/s exceeds the 990 of NVIDIA H200"
    wanted: list[Baselines] = [("slow", "fast"), "fastest"]
    for baselines in wanted:
        found, _ = race(harness, candidate(), baselines=baselines)
        told = {baseline.name: baseline for baseline in found.baselines}
        assert told.keys() == {"fast", "slow"}
        assert (told["fast"].timing, told["fast"].message) == (None, reason)
        assert found.fastest_baseline.name == "slow"
        assert found.outcomes[0].status is Status.OK


@pytest.mark.slow
def test_float32_is_held_against_six_products_of_bfloat16_and_a_baseline_is_too(kernel: SlowKernel) -> None:
    """They reach 164.9 TFLOP/s at most: a config that takes 500 us and a baseline of 400 us, below it and above."""
    harness = Harness(OPERATION, replace(SHAPE, dtype="float32"), Policy(), own_pid=1)
    harness.cost = Cost(flops=60 * 10**9, bytes=1)  # 120 TFLOP/s, and 150
    assert screen(harness, candidate(), early_stop=True).status is Status.OK
    found, _ = race(harness, candidate(), baselines=["fast"])
    assert [(each.timing is not None, each.message) for each in found.baselines] == [(True, "")]
    harness.cost = Cost(flops=80 * 10**9, bytes=1)  # 160 TFLOP/s, and 200
    found, _ = race(harness, candidate(), baselines=["fast"])
    assert found.outcomes[0].status is Status.OK
    reason = "implausible time of 400 us: 200 TFLOP/s exceeds the 165 of NVIDIA H200"
    assert [(each.timing, each.message) for each in found.baselines] == [(None, reason)]
    harness.cost = Cost(flops=90 * 10**9, bytes=1)  # 180 TFLOP/s
    outcome = screen(harness, candidate(), early_stop=True)
    assert (outcome.status, outcome.message) == (Status.IMPLAUSIBLE, "180 TFLOP/s exceeds the 165 of NVIDIA H200")


@pytest.mark.slow
def test_a_baseline_that_refuses_is_named_and_the_rest_are_raced(harness: Harness, kernel: SlowKernel) -> None:
    kernel.baseline_error = TypeError("no kernel for this shape")
    found, _ = race(harness, candidate(), baselines=["slow", "fast"])
    assert found.outcomes[0].status is Status.OK
    assert [(baseline.name, baseline.message) for baseline in found.baselines] == [
        ("slow", ""),
        ("fast", "TypeError: no kernel for this shape"),
    ]


def test_who_breaks_the_context_is_the_last_that_was_named(harness: Harness, kernel: SlowKernel) -> None:
    error, said = race(harness, candidate(), candidate(run="illegal"), candidate())
    assert "illegal memory access" in str(error)
    assert said == [None, 0, 1]
    kernel.is_context_alive = True  # of another worker
    kernel.baseline_error = RuntimeError("CUDA error: hardware stack error")
    error, said = race(harness, candidate())
    assert error is kernel.baseline_error
    assert said[-1] == "fast"


def test_what_broke_the_context_is_illegal_whatever_it_says(harness: Harness, kernel: SlowKernel) -> None:
    error = RuntimeError("Triton Error [CUDA]: operation not supported on global/shared address space")
    assert harness.classify(error) is Status.LAUNCH_ERROR
    kernel.is_context_alive = False
    assert harness.classify(error) is Status.ILLEGAL_ACCESS


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
def test_a_refusal_where_it_is_launched_has_its_status(harness: Harness, error: Exception, status: Status) -> None:
    assert harness.classify(error) is status


def test_the_first_output_is_timed_and_a_finalist_owes_all(kernel: SlowKernel) -> None:
    kernel.has_statistic = True
    harness = Harness(OPERATION, SHAPE, Policy(), own_pid=1)
    assert screen(harness, candidate(), early_stop=True).status is Status.OK
    assert set(kernel.asked) == {1}
    found, said = race(harness, candidate(), baselines="none")
    assert (found.outcomes[0].status, kernel.asked.count(2)) == (Status.OK, 3)  # the repeats
    assert said[:4] == [None, 0, 0, None]  # a turn for each of its binaries
    kernel.statistic_error = 100.0
    assert screen(harness, candidate(), early_stop=True).status is Status.OK
    found, _ = race(harness, candidate(), baselines="none")
    assert found.outcomes[0].status is Status.WRONG_RESULT
    assert "output 1 on normal" in found.outcomes[0].message


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_only_a_deterministic_config_owes_equal_runs(
    harness: Harness, kernel: SlowKernel, monkeypatch: pytest.MonkeyPatch, is_deterministic: bool
) -> None:
    implementation = replace(OURS, is_deterministic=lambda config: is_deterministic)
    monkeypatch.setattr(registry, "get_implementation", lambda operation, name: implementation)
    kernel.jitter = 1e-3
    found, _ = race(harness, candidate(), baselines="none")
    assert found.outcomes[0].status is (Status.NONDETERMINISTIC if is_deterministic else Status.OK)
    assert found.outcomes[0].message == ("3 runs are not bitwise equal" if is_deterministic else "")


def test_cases_are_shared_and_those_of_other_shapes_concern_no_candidate(
    harness: Harness, kernel: SlowKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = replace(IN_PLACE, check_shapes=lambda shape: (shape,))
    find = {"ours": OURS, "in_place": exact}
    monkeypatch.setattr(registry, "get_implementation", lambda operation, name: find[name])
    said: list[Entrant] = []
    assert screen(harness, candidate(), early_stop=True, said=said).status is Status.OK
    assert said == []
    for _ in range(2):
        assert screen(harness, candidate("in_place"), early_stop=True, said=said).status is Status.OK
    assert said == [None, 0]
    kernel.is_memory_full = True
    find["in_place"] = replace(exact, check_shapes=lambda shape: (shape, shape, shape))
    with pytest.raises(UnopenedError, match="out of memory"):
        screen(harness, candidate("in_place"), early_stop=True)


def test_an_error_of_the_machine_is_no_verdict(
    harness: Harness, kernel: SlowKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "/cache")

    monkeypatch.setattr(kernel, "launch", fail)
    with pytest.raises(PermissionError):
        screen(harness, candidate(), early_stop=True)
    error, _ = race(harness, candidate())
    assert isinstance(error, PermissionError)


class DerivedError(PTXASError):  # type: ignore[misc] # Triton has no types
    """An error of a foreign implementation that is one of Triton's, too."""


@pytest.mark.parametrize("error", [DerivedError("no"), RuntimeError("PassManager::run failed"), RuntimeError("other")])
def test_a_trial_fails_to_compile_where_a_call_gives_way(harness: Harness, error: Exception) -> None:
    assert (harness.classify(error) is Status.COMPILE_ERROR) == is_toolchain_refusal(error)
    assert is_toolchain_refusal(error) == (str(error) != "other")


@pytest.mark.slow
def test_what_a_warm_cache_holds_is_not_held_against_the_memory(kernel: SlowKernel) -> None:
    for policy, status in ((Policy(), Status.IMPLAUSIBLE), (Policy(cache="warm"), Status.OK)):
        harness = Harness(OPERATION, SHAPE, policy, own_pid=1)
        harness.cost = Cost(flops=1, bytes=3 * 10**9)  # 6000 GB/s
        harness._cache_bytes = 10**9  # of which a third lies in the cache
        assert screen(harness, candidate(), early_stop=True).status is status
    harness.cost = Cost(flops=1, bytes=5 * 10**9)  # 8000 GB/s of what the cache cannot hold
    assert screen(harness, candidate(), early_stop=True).status is Status.IMPLAUSIBLE


@pytest.mark.slow
def test_products_in_tf32_have_their_own_roof(kernel: SlowKernel) -> None:
    for multiplies_in, status in (("", Status.IMPLAUSIBLE), ("tf32", Status.OK)):
        operation = replace(OPERATION, multiplies_in=multiplies_in)
        harness = Harness(operation, replace(SHAPE, dtype="float32"), Policy(), own_pid=1)
        harness.cost = Cost(flops=175 * 10**9, bytes=1)  # 350 TFLOP/s
        assert screen(harness, candidate(), early_stop=True).status is status
