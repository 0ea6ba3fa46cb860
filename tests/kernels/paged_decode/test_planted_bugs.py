"""The correctness gate catches planted bugs, and nothing else."""

import itertools
from pathlib import Path

import pytest

from autotune.trial import Status
from tests.kernels.conftest import Interpreter
from tests.kernels.paged_decode.mutants import CAUGHT, MUTANTS, Mutant, judge_copy

each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
each_gate = pytest.mark.parametrize(
    ("schedule", "shape"), [*itertools.product(["split", "flat"], ["plain", "window"]), ("flat", "many heads")]
)


@each_mutant
def test_interpreted_mutant_is_caught(mutant: Mutant, interpreter: Interpreter, tmp_path: Path) -> None:
    status, message = interpreter("gate", mutant.name, mutant.schedule, mutant.shape, str(tmp_path))
    assert status in CAUGHT, message


@each_gate
def test_interpreted_kernel_passes_the_gate(
    schedule: str, shape: str, interpreter: Interpreter, tmp_path: Path
) -> None:
    status, message = interpreter("gate", None, schedule, shape, str(tmp_path))
    assert status == Status.OK, message


@pytest.mark.gpu
@each_mutant
def test_gpu_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    verdict = judge_copy(mutant, mutant.schedule, mutant.shape, tmp_path, "cuda")
    assert verdict.status in CAUGHT, verdict.message


@pytest.mark.gpu
@each_gate
def test_gpu_kernel_passes_the_gate(schedule: str, shape: str, tmp_path: Path) -> None:
    verdict = judge_copy(None, schedule, shape, tmp_path, "cuda")
    assert verdict.status == Status.OK, verdict.message
