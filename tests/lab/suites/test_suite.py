"""Parts that all suites share: their names, results, threads, and what was served."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.dispatch import get_kernel
from autotune.errors import UnknownNameError
from autotune.lab.bench.entrants import served_notes
from autotune.lab.suites import SUITES, CpuMachine, Suite, SuiteSheet, find_suite
from autotune.lab.suites.assignment import measure_assignment
from autotune.lab.suites.exercise import measure_exercise
from autotune.lab.suites.threads import torch_threads
from autotune.shape import AttentionShape
from autotune.trial import Policy
from tests.lab.bench.fake_machine import FakeMachine


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_is_found_by_its_name(name: str) -> None:
    assert find_suite(name).name == name


def test_an_unknown_suite_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        UnknownNameError, match=r"suite='cudnn_paged' is unknown; allowed: exercise, .*, cudnn-paged, axes"
    ):
        find_suite("cudnn_paged")


def test_a_result_is_what_was_measured_so_far_and_its_failures() -> None:
    sheets = [SuiteSheet("one", (), (), failures=("too far",)), SuiteSheet("two", (), ())]
    result = Suite("s", "what", lambda machine: iter(sheets)).result(FakeMachine(), sheets)
    assert result.sheets == tuple(sheets)
    assert (result.failures, result.device, result.policy) == (("too far",), "a machine", Policy("eager", "warm"))


def test_a_result_has_the_threads_that_its_times_were_taken_with() -> None:
    machine, suite = CpuMachine(), Suite("s", "what", lambda machine: iter(()))
    assert suite.result(machine, ()).threads == torch.get_num_threads()
    assert replace(suite, policy_on=lambda machine: None).result(machine, ()).threads is None
    assert replace(suite, has_own_threads=True).result(machine, ()).threads is None
    assert suite.result(FakeMachine(kind="cuda"), ()).threads is None
    assert [name for name in SUITES if find_suite(name).has_own_threads] == ["axes"]


@pytest.mark.parametrize(("name", "first"), [("exercise", "attention, float32: 2, 2, 9, 8"), ("assignment", "S 9")])
@pytest.mark.slow
def test_a_suite_tells_what_begins(name: str, first: str) -> None:
    steps: list[str] = []
    machine = FakeMachine(on_step=steps.append)
    if name == "exercise":
        list(measure_exercise(machine, ((2, 2, 9, 8),)))
    else:
        list(measure_assignment(machine, (9,)))
    assert steps[0] == first


@pytest.mark.parametrize("fails", [False, True])
def test_threads_are_put_back(fails: bool) -> None:
    before = torch.get_num_threads()
    try:
        with torch_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            if fails:
                raise KeyError
    except KeyError:
        pass
    with torch_threads(None):
        assert torch.get_num_threads() == before


def test_what_was_served_is_told_and_equal_ones_together() -> None:
    tuned = AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
    sizes: dict[str, Any] = {"batch": 1, "heads": 10, "kv_heads": 5, "head_dim": 192}  # of no model
    untuned = [AttentionShape(**sizes, seq_q=seq, causal=True, softcap=True, dtype="float16") for seq in (500, 540)]
    unlike = AttentionShape(batch=1, heads=1, seq_q=40, head_dim=16)
    kernels = [get_kernel(shape, device="NVIDIA H200") for shape in (tuned, *untuned, unlike)]
    assert [kernel.provenance.rung for kernel in kernels] == ["exact", "default", "default", "default"]
    first, second, _, last = kernels
    assert served_notes({"": None}) == ()
    assert served_notes({"": first}) == (f"served: {first.candidate} (tuned for this shape on NVIDIA H200)",)
    count, *lines = served_notes({**dict(zip("abce", kernels, strict=True)), "d": None})
    assert count == "3 of 4 served configs are untuned: the portfolio's default (2), the space's default (1)"
    assert lines == [
        f"served at a: {first.candidate} (tuned for this shape on NVIDIA H200)",
        f"served at b; c: {second.candidate} (portfolio's default)",
        f"served at e: {last.candidate} (space's default)",
    ]
    assert served_notes({"a": first, "b": first})[0] == "0 of 2 served configs are untuned"
