"""The correctness gate catches planted bugs, and nothing else."""

from pathlib import Path

import pytest

from autotune.trial import Status
from tests.kernels.conftest import Interpreter
from tests.kernels.mutants import MUTANTS, SHAPES, Mutant, judge_copy

each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))


@each_mutant
def test_interpreted_mutant_is_caught(mutant: Mutant, interpreter: Interpreter, tmp_path: Path) -> None:
    status, message = interpreter("gate", mutant.name, mutant.shape, str(tmp_path))
    assert status == mutant.status, message


@pytest.mark.parametrize("shape", SHAPES)
def test_interpreted_kernel_passes_the_gate(shape: str, interpreter: Interpreter, tmp_path: Path) -> None:
    status, message = interpreter("gate", None, shape, str(tmp_path))
    assert status == Status.OK, message


@pytest.mark.gpu
@each_mutant
def test_gpu_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    verdict = judge_copy(mutant, mutant.shape, tmp_path, "cuda")
    assert verdict.status == mutant.status, verdict.message


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_gpu_kernel_passes_the_gate(shape: str, tmp_path: Path) -> None:
    verdict = judge_copy(None, shape, tmp_path, "cuda")
    assert verdict.status == Status.OK, verdict.message
