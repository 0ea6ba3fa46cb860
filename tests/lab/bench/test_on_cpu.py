"""A comparison on the CPU: entries, refusals with reasons, and what is measured."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import torch

from autotune.errors import AutotuneError
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.lab.bench import races
from autotune.lab.bench.races import compare_on_cpu
from autotune.search_spaces.flash_attention.operation import OPERATION
from autotune.shape import AttentionShape
from autotune.trial import Timing

SHAPE = AttentionShape(batch=1, heads=2, seq_q=33, head_dim=16, dtype="float32", causal=True)


@dataclass
class Fake:
    """A baseline that computes the operation's reference and adds a little."""

    name: str
    off_by: float = 0.0
    missing: str | None = None
    failure: Exception | None = None
    calls_before: int | None = None  # that succeed; None: it fails in ``prepare``
    is_usual: bool = True
    verified_on_hardware: bool = True

    def available(self) -> str | None:
        return self.missing

    def unsupported(self, shape: Any) -> str | None:
        return "too wide" if self.name == "narrow" else None

    def prepare(self, shape: Any, inputs: Any) -> Callable[[], torch.Tensor]:
        if self.failure and self.calls_before is None:
            raise self.failure
        result = DEFINITION.reference(inputs)[0].float() + self.off_by
        calls = itertools.count()

        def run() -> torch.Tensor:
            if self.calls_before is not None and next(calls) >= self.calls_before:
                assert self.failure is not None
                raise self.failure
            return result

        return run


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    known = [
        Fake("missing", missing="pip install it"),
        Fake("right", verified_on_hardware=False),
        Fake("narrow"),
        Fake("wrong", off_by=0.1),
        Fake("broken", failure=RuntimeError("no\nkernel")),
        Fake("unasked"),
    ]

    monkeypatch.setattr(races, "load_baselines", lambda operation: known)
    return known


@pytest.mark.slow
def test_those_with_a_time_come_first_and_the_others_say_why(fakes: list[Fake]) -> None:
    names = [fake.name for fake in fakes if fake.name != "unasked"]
    found = compare_on_cpu(OPERATION, SHAPE, names, seconds=0.0)
    assert [entry.name for entry in found.entries] == ["right", "missing", "narrow", "wrong", "broken"]
    (right,) = found.timed
    assert right.timing is not None
    assert right.timing.median_us > 0.0
    assert right.tflops is not None
    assert not right.verified_on_hardware
    assert right.error is not None
    assert right.error_limit is not None
    assert 0.0 < right.error <= right.error_limit
    messages = [entry.message for entry in found.entries[1:]]
    assert messages[:2] == ["pip install it", "too wide"]
    assert "largest error 0.1" in messages[2]
    assert messages[3] == "RuntimeError: no kernel"
    assert (found.served, found.operation, found.shape) == (None, "flash_attention", SHAPE)
    assert (found.gpu, found.conditions) == (None, None)
    assert found.started_at is not None
    assert datetime.now(UTC) - found.started_at < timedelta(minutes=5)


def test_inputs_that_do_not_fit_are_this_problem_s_failure(fakes: list[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("not enough memory:\nyou tried to allocate 1 TB")

    monkeypatch.setattr(races, "make_case", refuse)
    message = "inputs and reference cannot be made: RuntimeError: not enough memory: you tried to allocate 1 TB"
    with pytest.raises(AutotuneError, match=message):
        compare_on_cpu(OPERATION, SHAPE, ["right"], seconds=0.0)
    refused = compare_on_cpu(OPERATION, SHAPE, ["missing", "narrow"], seconds=0.0)  # for whom none are made
    assert [entry.message for entry in refused.entries] == ["pip install it", "too wide"]


def test_each_step_is_named_before_it_begins(fakes: list[Fake]) -> None:
    steps: list[str] = []
    compare_on_cpu(OPERATION, SHAPE, ["missing", "right", "broken"], seconds=0.0, on_step=steps.append)
    making, *checking, timing = steps
    assert making == "making inputs and their fp64 reference"
    assert checking == ["checking right", "checking broken"]
    assert timing == "timing right for at most 0 s, but 5 rounds at least and 100 at most"


def test_a_reference_that_takes_minutes_says_so(fakes: list[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    assert races._how_long(35 * 10**12) == ", 35 TFLOP: minutes on a processor"
    assert races._how_long(OPERATION.cost(SHAPE).flops) == ""
    monkeypatch.setattr(races, "MANY_FLOPS", 1)
    steps: list[str] = []
    compare_on_cpu(OPERATION, SHAPE, ["right"], seconds=0.0, on_step=steps.append)
    assert steps[0] == "making inputs and their fp64 reference, 0 TFLOP: minutes on a processor"


class Slow:
    """A stopwatch over calls of 2.5 seconds by its own clock."""

    def __init__(self, call: Callable[[], object]) -> None:
        clock.now += 2.5

    def sample(self) -> float:
        return 2.5e6

    warm_up = sample


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


clock = Clock()


@pytest.mark.parametrize(
    ("seconds", "rounds", "said"),
    [
        (1.0, 3, "for at most 1 s, but 3 rounds at least, which take about 20 s"),
        (10.0, 5, "for at most 10 s, but 5 rounds at least, which take about 30 s"),
        (60.0, 5, "for at most 60 s, but 5 rounds at least and 100 at most"),
    ],
)
@pytest.mark.slow
def test_of_slow_calls_fewer_rounds_are_run_and_their_time_is_named(
    fakes: list[Fake], monkeypatch: pytest.MonkeyPatch, seconds: float, rounds: int, said: str
) -> None:
    least: list[int] = []

    def race(stopwatches: Any, *, min_rounds: int, **options: Any) -> Any:
        least.append(min_rounds)
        return dict.fromkeys(stopwatches, Timing(1.0, 1.0, 1.0, min_rounds))

    monkeypatch.setattr(races, "ClockStopwatch", Slow)
    monkeypatch.setattr(races, "time", clock)
    monkeypatch.setattr(races, "time_in_turns", race)
    steps: list[str] = []
    compare_on_cpu(OPERATION, SHAPE, ["right", "unasked"], seconds=seconds, on_step=steps.append)
    assert steps[-1] == f"timing right, unasked {said}"
    assert least == [rounds]


def test_what_does_not_fit_the_memory_is_refused_before_inputs_are_made(
    fakes: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.append(Fake("sdpa math"))
    scores = 3 * 4 * SHAPE.heads * SHAPE.seq_q**2
    held = OPERATION.cost(SHAPE).bytes + 5 * 8 * SHAPE.heads * SHAPE.seq_q * SHAPE.head_dim
    assert held > scores
    large = replace(SHAPE, seq_q=990, seq_kv=990)  # where scores outgrow inputs
    found = compare_on_cpu(OPERATION, large, ["right", "sdpa math"], seconds=0.0, room=16 * 2**20)
    messages = {entry.name: entry.message for entry in found.entries}
    assert messages == {"right": "", "sdpa math": "its scores take about 0.0 GiB, 0.0 GiB may be asked for"}
    monkeypatch.delattr(races, "make_case")
    with pytest.raises(AutotuneError, match="inputs, output and its fp64 reference take about"):
        compare_on_cpu(OPERATION, SHAPE, ["right"], seconds=0.0, room=held - 1)


@pytest.mark.slow
def test_what_compiles_says_so(fakes: list[Fake]) -> None:
    fakes.append(Fake("flex"))
    steps: list[str] = []
    compare_on_cpu(OPERATION, SHAPE, ["right", "flex"], seconds=0.0, on_step=steps.append)
    assert steps[1:3] == ["checking right", "compiling and checking flex"]


def test_seconds_are_the_most_that_are_taken(fakes: list[Fake]) -> None:
    """Fast calls end after their rounds, whatever the seconds."""
    found = compare_on_cpu(OPERATION, SHAPE, ["right"], seconds=60.0)
    (right,) = found.timed
    assert right.timing is not None
    assert right.timing.samples == 100


@pytest.mark.parametrize("calls_before", [1, 2, 3, 20])
@pytest.mark.slow
def test_one_that_breaks_while_it_is_timed_costs_no_other(fakes: list[Fake], calls_before: int) -> None:
    """It breaks at its check, while its memory is watched, or in a race that is under way."""
    breaking = Fake("breaking", calls_before=calls_before, failure=RuntimeError("out of\nmemory"))
    fakes.append(breaking)
    found = compare_on_cpu(OPERATION, SHAPE, ["right", "unasked", "breaking"], seconds=0.0)
    assert [entry.name for entry in found.timed] == ["right", "unasked"]
    assert all(entry.timing is not None and entry.timing.samples == 5 for entry in found.timed)
    (broken,) = [entry for entry in found.entries if entry.timing is None]
    assert (broken.name, broken.message) == ("breaking", "RuntimeError: out of memory")


def test_threads_are_those_of_torch(fakes: list[Fake]) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert compare_on_cpu(OPERATION, SHAPE, [], seconds=0.0).threads == before + 1
    finally:
        torch.set_num_threads(before)


def test_nothing_to_compare_is_a_comparison_too(fakes: list[Fake]) -> None:
    assert compare_on_cpu(OPERATION, SHAPE, [], seconds=0.0).timed == ()


@pytest.mark.slow
def test_memory_is_what_a_call_holds_beside_its_result_and_keeps_between_calls() -> None:
    """Eager's two matrices of scores at once and its mask, by formula; torch's flash has none."""
    shape = AttentionShape(batch=1, heads=2, seq_q=200, head_dim=16, dtype="float32", causal=True)
    found = compare_on_cpu(OPERATION, shape, ("sdpa flash", "eager"), seconds=0.0)
    held = {entry.name: entry.extra_bytes for entry in found.entries}
    scores, mask, few = 2 * 200 * 200 * 4, 200 * 200, 4096  # torch's numbers and paddings
    assert held["eager"] is not None
    assert held["sdpa flash"] is not None
    assert 2 * scores + mask <= held["eager"] < 2 * scores + mask + few
    assert held["sdpa flash"] < scores
