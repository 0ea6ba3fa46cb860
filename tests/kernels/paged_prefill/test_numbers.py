"""Paged prefill's numbers: every pair of features, any order of pages and division of queries, the reference itself."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.kernels.paged_prefill.definition import DEFINITION
from autotune.kernels.paged_prefill.inputs import check_shape
from autotune.kernels.paged_prefill.reference import paged_prefill_reference
from autotune.shape import PagedShape
from tests.contract.covering import all_pairs, pairs_of
from tests.contract.interpreting import interpret
from tests.kernels.paged_prefill.cases import FACTORS, Case, covering_rows, gpu_cases, interpreted_cases, slow_cases
from tests.kernels.paged_prefill.numerics import (
    bounds_failure,
    case_failure,
    company_failure,
    graph_failure,
    many_failure,
    order_failure,
    poison_failure,
    scale_failure,
    shared_failure,
    truth,
)

ORDERS = FACTORS["order"]


INTERPRETED = [  # every fourth is quick; the contract suite interprets pairs of all features, too
    pytest.param(case, marks=[pytest.mark.slow] if number % 4 or case in slow_cases() else [])
    for number, case in enumerate(interpreted_cases())
]


@pytest.mark.parametrize("case", INTERPRETED, ids=str)
def test_interpreted_case(case: Case) -> None:
    assert interpret(case_failure, case, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("case", gpu_cases(), ids=str)
def test_gpu_case(case: Case) -> None:
    assert case_failure(case, "cuda") is None


def test_every_pair_of_features_is_covered() -> None:
    found = {pair for row in covering_rows() for pair in pairs_of(row)}
    assert [pair for pair in all_pairs(FACTORS) if pair not in found] == []


def test_there_are_enough_cases_and_each_is_named() -> None:
    assert len(interpreted_cases()) >= 150
    assert len({str(case) for case in gpu_cases()}) == len(gpu_cases()) >= 150
    count = {dtype: sum(case.dtype == dtype for case in gpu_cases()) for dtype in ("float16", "float32", "bfloat16")}
    assert count["bfloat16"] == count["float16"] > 60
    assert count["float32"] > 15
    stored = Counter(case.kv_dtype for case in interpreted_cases())
    assert min(stored[kv_dtype] for kv_dtype in ("int8", "float8_e4m3fn", "float8_e5m2")) > 30


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.slow
def test_interpreted_bits_do_not_depend_on_the_order_of_pages(order: str) -> None:
    assert interpret(order_failure, order, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("order", ORDERS)
def test_gpu_bits_do_not_depend_on_the_order_of_pages(order: str) -> None:
    assert order_failure(order, "cuda") is None


def test_interpreted_sequences_may_share_one_row_of_pages() -> None:
    assert interpret(shared_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_sequences_may_share_one_row_of_pages() -> None:
    assert shared_failure("cuda") is None


@pytest.mark.slow
def test_interpreted_sequences_are_found_among_many() -> None:
    assert interpret(many_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_sequences_are_found_among_many() -> None:
    assert many_failure("cuda") is None


def test_interpreted_launch_stays_within_its_tensors() -> None:
    assert interpret(bounds_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_launch_stays_within_its_tensors() -> None:
    assert bounds_failure("cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize("order", ORDERS)
def test_gpu_graph_follows_lengths_and_division(order: str) -> None:
    assert graph_failure(order) is None


def test_interpreted_bits_of_a_config_do_not_depend_on_the_batch() -> None:
    """Of chunks that begin with a tile: the interpreter's products depend on where in it a row lies, as numpy's do."""
    assert interpret(company_failure, 48, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [48, 40])
def test_gpu_bits_of_a_config_do_not_depend_on_the_batch(chunk: int) -> None:
    assert company_failure(chunk, "cuda") is None


@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("kv_dtype", ["int8", "float8_e5m2"])  # the interpreter reads NaN of e4m3 as 480
def test_interpreted_nan_is_seen_and_stays_in_its_sequence(kv_dtype: str, where: str) -> None:
    assert interpret(poison_failure, kv_dtype, where, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("kv_dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_gpu_nan_is_seen_and_stays_in_its_sequence(kv_dtype: str, where: str) -> None:
    assert poison_failure(kv_dtype, where, "cuda") is None


@pytest.mark.parametrize("kv_dtype", ["int8", "float8_e4m3fn"])
def test_interpreted_scales_may_be_far_apart(kv_dtype: str) -> None:
    assert interpret(scale_failure, kv_dtype, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_gpu_scales_may_be_far_apart(kv_dtype: str) -> None:
    assert scale_failure(kv_dtype, "cuda") is None


FEATURES: list[dict[str, Any]] = [
    {},
    {"window": 5},
    {"softcap": True},
    {"sinks": True},
    {"alibi": True},
    {"window": 3, "softcap": True, "sinks": True, "alibi": True},
    {"causal": False},
    {"causal": False, "window": 3, "softcap": True, "sinks": True, "alibi": True},
]


@pytest.mark.parametrize("max_scores", [2**26, 100])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("features", FEATURES, ids=lambda features: "-".join(features) or "plain")
def test_reference_is_dense_attention(features: dict[str, Any], layout: str, max_scores: int) -> None:
    sizes: dict[str, Any] = {"batch": 1, "heads": 6, "kv_heads": 2, "max_context": 1, "head_dim": 24}
    sizes |= {"head_dim_v": 16, "page_size": 5, "dtype": "float32", "layout": layout}
    shape = check_shape(PagedShape(**sizes, **features), (0, 1, 4, 5, 33, 7), (2, 1, 9, 5, 12, 0))
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cpu")
    inputs = replace(inputs, page_table=inputs.page_table.clamp(min=0))
    out, lse = paged_prefill_reference(*inputs.tensors, **inputs.features, max_scores=max_scores)
    expected, expected_lse = truth(inputs, torch.float64)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-13)
