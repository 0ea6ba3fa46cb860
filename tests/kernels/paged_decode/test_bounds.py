"""Lengths that the page table does not hold lead outside of nothing, in the interpreter and on a GPU."""

import pytest

from tests.contract.interpreting import interpret
from tests.kernels.paged_decode.bounds import ODD, lengths_failure

SCHEDULES = [("split", "kernel"), ("split", "last"), ("flat", "kernel")]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(("schedule", "combine"), SCHEDULES)
@pytest.mark.slow
def test_interpreted_lengths_end_with_the_table(schedule: str, combine: str, name: str) -> None:
    assert interpret(lengths_failure, schedule, combine, name, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(("schedule", "combine"), SCHEDULES)
def test_gpu_lengths_end_with_the_table(schedule: str, combine: str, name: str) -> None:
    assert lengths_failure(schedule, combine, name, "cuda") is None
