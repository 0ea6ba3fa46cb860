"""Lengths that the page table does not hold, and pages that the cache does not, lead outside of nothing, in the
interpreter and on a GPU."""

import pytest

from tests.contract.interpreting import interpret
from tests.kernels.paged_decode.bounds import NO_PAGES, ODD, lengths_failure, no_pages_failure, pages_failure

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


each_entry = pytest.mark.parametrize(
    ("name", "kv_dtype"), [*((each, "float16") for each in NO_PAGES), ("most", "int8")]
)


@each_entry
@pytest.mark.parametrize(("schedule", "combine"), SCHEDULES)
def test_interpreted_pages_lie_in_the_cache(schedule: str, combine: str, name: str, kv_dtype: str) -> None:
    assert interpret(pages_failure, schedule, combine, name, kv_dtype, "cpu") is None


@pytest.mark.gpu
@each_entry
@pytest.mark.parametrize(("schedule", "combine"), SCHEDULES)
def test_gpu_pages_lie_in_the_cache(schedule: str, combine: str, name: str, kv_dtype: str) -> None:
    assert pages_failure(schedule, combine, name, kv_dtype, "cuda") is None


@pytest.mark.parametrize(("schedule", "combine"), SCHEDULES)
def test_interpreted_cache_without_pages_has_no_keys(schedule: str, combine: str) -> None:
    assert interpret(no_pages_failure, schedule, combine, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize(("schedule", "combine"), SCHEDULES)
def test_gpu_cache_without_pages_has_no_keys(schedule: str, combine: str) -> None:
    assert no_pages_failure(schedule, combine, "cuda") is None
