"""A comparison on the CPU: who takes part, who is refused and why, and what is measured of each."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import torch

from autotune.comparison import compare_on_cpu, on_cpu
from autotune.errors import AutotuneError
from autotune.kernels.flash_attention import KERNEL
from autotune.search_spaces.flash_attention import OPERATION
from autotune.shape import AttentionShape

SHAPE = AttentionShape(batch=1, heads=2, seq_q=33, head_dim=16, dtype="float32", causal=True)


@dataclass
class Fake:
    """A baseline that computes the operation's reference and adds a little."""

    name: str
    off_by: float = 0.0
    missing: str | None = None
    failure: Exception | None = None
    is_usual: bool = True
    verified_on_hardware: bool = True

    def available(self) -> str | None:
        return self.missing

    def unsupported(self, shape: Any) -> str | None:
        return "too wide" if self.name == "narrow" else None

    def prepare(self, shape: Any, inputs: Any) -> Callable[[], torch.Tensor]:
        if self.failure:
            raise self.failure
        result = KERNEL.reference(inputs)[0].float() + self.off_by
        return lambda: result


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

    class Kernel(type(KERNEL)):  # type: ignore[misc]
        def baselines(self) -> list[Fake]:
            return known

    monkeypatch.setattr(on_cpu, "load_kernel", lambda name: Kernel())
    return known


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
    assert (found.config, found.operation, found.shape) == (None, "flash_attention", SHAPE)
    assert (found.gpu, found.conditions) == (None, None)
    assert found.started_at is not None
    assert datetime.now(UTC) - found.started_at < timedelta(minutes=5)


def test_inputs_that_do_not_fit_are_this_problem_s_failure(fakes: list[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("not enough memory:\nyou tried to allocate 1 TB")

    monkeypatch.setattr(on_cpu, "make_case", refuse)
    message = "inputs and reference cannot be made: RuntimeError: not enough memory: you tried to allocate 1 TB"
    with pytest.raises(AutotuneError, match=message):
        compare_on_cpu(OPERATION, SHAPE, ["right"], seconds=0.0)
    refused = compare_on_cpu(OPERATION, SHAPE, ["missing", "narrow"], seconds=0.0)  # for whom none are made
    assert [entry.message for entry in refused.entries] == ["pip install it", "too wide"]


def test_each_step_is_told_before_it_begins(fakes: list[Fake]) -> None:
    steps: list[str] = []
    compare_on_cpu(OPERATION, SHAPE, ["missing", "right", "broken"], seconds=0.0, on_step=steps.append)
    making, *checking, timing = steps
    assert making == "making inputs and their fp64 reference"
    assert checking == ["checking right", "checking broken"]
    assert timing == "timing right for 0 s, at least 5 rounds"


def test_threads_are_those_of_torch(fakes: list[Fake]) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert compare_on_cpu(OPERATION, SHAPE, [], seconds=0.0).threads == before + 1
    finally:
        torch.set_num_threads(before)


def test_nobody_to_compare_is_a_comparison_too(fakes: list[Fake]) -> None:
    assert compare_on_cpu(OPERATION, SHAPE, [], seconds=0.0).timed == ()


def test_memory_is_what_a_call_holds_beside_its_result() -> None:
    """Eager's two matrices of scores at once and its mask, by formula; torch's flash has none."""
    shape = AttentionShape(batch=1, heads=2, seq_q=200, head_dim=16, dtype="float32", causal=True)
    found = compare_on_cpu(OPERATION, shape, ("sdpa flash", "eager"), seconds=0.0)
    held = {entry.name: entry.extra_bytes for entry in found.entries}
    scores = 2 * 200 * 200 * 4
    assert held["eager"] is not None
    assert held["sdpa flash"] is not None
    assert 2 * scores <= held["eager"] < 3 * scores
    assert held["sdpa flash"] < scores
