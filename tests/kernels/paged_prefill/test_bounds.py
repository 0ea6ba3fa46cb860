"""Odd lengths, offsets and pages lead outside of nothing, in the interpreter and on a GPU."""

import pytest

from tests.contract.interpreting import interpret
from tests.kernels.paged_decode.bounds import NO_PAGES
from tests.kernels.paged_prefill.bounds import (
    HOSTILE,
    first_offset_failure,
    hostile_failure,
    no_pages_failure,
    pages_failure,
)


def test_interpreted_rows_before_the_first_offset_stay() -> None:
    assert interpret(first_offset_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_rows_before_the_first_offset_stay() -> None:
    assert first_offset_failure("cuda") is None


QUICK = "offsets that fall"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == QUICK else [pytest.mark.slow]) for name in HOSTILE]
)
def test_interpreted_launch_stays_within_its_tensors(name: str) -> None:
    assert interpret(hostile_failure, *HOSTILE[name], "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", HOSTILE)
def test_gpu_launch_stays_within_its_tensors(name: str) -> None:
    assert hostile_failure(*HOSTILE[name], "cuda") is None


each_entry = pytest.mark.parametrize(
    ("name", "kv_dtype"), [*((each, "float16") for each in NO_PAGES), ("most", "int8"), ("least", "int8")]
)


@each_entry
def test_interpreted_pages_lie_in_the_cache(name: str, kv_dtype: str) -> None:
    assert interpret(pages_failure, NO_PAGES[name], kv_dtype, "cpu") is None


@pytest.mark.gpu
@each_entry
def test_gpu_pages_lie_in_the_cache(name: str, kv_dtype: str) -> None:
    assert pages_failure(NO_PAGES[name], kv_dtype, "cuda") is None


def test_interpreted_cache_without_pages_has_no_keys() -> None:
    assert interpret(no_pages_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_cache_without_pages_has_no_keys() -> None:
    assert no_pages_failure("cuda") is None
