"""The correctness gate catches planted bugs, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from autotune.correctness import Verdict
from autotune.implementation import Implementation
from autotune.registry import get_implementation
from autotune.trial import Status
from tests.contract.interpreting import interpret
from tests.contract.planting import Mutant, judge_copy, source_of
from tests.contract.simulating import judge_simulated
from tests.contract.suite import OURS, each_of_ours, planted_in

QUICK = 3  # mutants of an implementation that are interpreted or simulated in the quick suite
Found = tuple[str, str]  # operation and implementation


def mutants(*, on_gpu: bool) -> list[Any]:
    """Return the owners and mutants to test, on a GPU without those that race."""
    return [
        pytest.param(
            *((each.operation, each.name), mutant),
            id=f"{each.title}-{mutant.name}".replace(" ", "-"),
            marks=[pytest.mark.slow] if number >= QUICK or planted_in(each).gates[mutant.gate].is_slow else [],
        )
        for each in OURS
        for number, mutant in enumerate(planted_in(each).mutants)
        if not (on_gpu and mutant.races)
    ]


GATES = [
    pytest.param(
        *((each.operation, each.name), gate),
        id=f"{each.title}-{gate}".replace(" ", "-"),
        marks=[pytest.mark.slow] if number else [],  # the whole of a gate takes seconds
    )
    for each in OURS
    for number, gate in enumerate(planted_in(each).gates)
]
each_gate = pytest.mark.parametrize(("owner", "gate"), GATES)


def gate_of(owner: Found, name: str) -> Any:
    return next(planted_in(each).gates[name] for each in OURS if (each.operation, each.name) == owner)


def judge_on_cpu(owner: Found, gate: str, mutant: Mutant | None, folder: Path) -> Verdict:
    """Judge a copy in Triton's interpreter; where that cannot run it, in the simulator."""
    if get_implementation(*owner).can_interpret:
        return interpret(judge_copy, *owner, gate_of(owner, gate), mutant, folder, "cpu")
    return judge_simulated(*owner, gate_of(owner, gate), mutant, folder)


@pytest.mark.parametrize("owner", [pytest.param((each.operation, each.name), id=each.title) for each in OURS])
def test_text_that_each_mutant_replaces_stands_once(owner: Found) -> None:
    planted = next(planted_in(each) for each in OURS if (each.operation, each.name) == owner)
    counts = {
        (mutant.name, mutant.right): source_of(*owner, mutant).read_text().count(mutant.right)
        for mutant in planted.mutants
    }
    assert not {name: count for name, count in counts.items() if count != 1}


@pytest.mark.parametrize(("owner", "mutant"), mutants(on_gpu=False))
def test_mutant_is_caught_on_the_cpu(owner: Found, mutant: Mutant, tmp_path: Path) -> None:
    verdict = judge_on_cpu(owner, mutant.gate, mutant, tmp_path)
    assert verdict.status in mutant.statuses, verdict.message


@pytest.mark.slow
@each_gate
def test_kernel_passes_its_gate_on_the_cpu(owner: Found, gate: str, tmp_path: Path) -> None:
    verdict = judge_on_cpu(owner, gate, None, tmp_path)
    assert verdict.status == Status.OK, verdict.message


@pytest.mark.gpu
@pytest.mark.parametrize(("owner", "mutant"), mutants(on_gpu=True))
def test_gpu_mutant_is_caught(owner: Found, mutant: Mutant, tmp_path: Path) -> None:
    verdict = judge_copy(*owner, gate_of(owner, mutant.gate), mutant, tmp_path, "cuda")
    assert verdict.status in mutant.statuses, verdict.message


@pytest.mark.gpu
@each_gate
def test_gpu_kernel_passes_its_gate(owner: Found, gate: str, tmp_path: Path) -> None:
    verdict = judge_copy(*owner, gate_of(owner, gate), None, tmp_path, "cuda")
    assert verdict.status == Status.OK, verdict.message


@each_of_ours
def test_each_of_ours_has_mutants(implementation: Implementation[Any]) -> None:
    planted = planted_in(implementation)
    assert len(planted.mutants) >= 10
    assert {mutant.gate for mutant in planted.mutants} <= set(planted.gates)
