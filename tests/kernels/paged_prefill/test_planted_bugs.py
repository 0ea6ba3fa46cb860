"""The correctness gate catches planted bugs, and nothing else."""

from pathlib import Path

import pytest

from autotune.trial import Status
from tests.kernels.conftest import Interpreter
from tests.kernels.paged_prefill.mutants import BUGS, CAUGHT, SHAPES, judge_copy
from tests.kernels.planting import Bug

each_bug = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
each_shape = pytest.mark.parametrize("shape", SHAPES)


@each_bug
def test_interpreted_bug_is_caught(bug: Bug, interpreter: Interpreter, tmp_path: Path) -> None:
    status, message = interpreter("gate", bug.name, bug.shows_on, str(tmp_path))
    assert status in CAUGHT, message


@each_shape
def test_interpreted_kernel_passes_the_gate(shape: str, interpreter: Interpreter, tmp_path: Path) -> None:
    status, message = interpreter("gate", None, shape, str(tmp_path))
    assert status == Status.OK, message


@pytest.mark.gpu
@each_bug
def test_gpu_bug_is_caught(bug: Bug, tmp_path: Path) -> None:
    verdict = judge_copy(bug, bug.shows_on, tmp_path, "cuda")
    assert verdict.status in CAUGHT, verdict.message


@pytest.mark.gpu
@each_shape
def test_gpu_kernel_passes_the_gate(shape: str, tmp_path: Path) -> None:
    verdict = judge_copy(None, shape, tmp_path, "cuda")
    assert verdict.status == Status.OK, verdict.message
