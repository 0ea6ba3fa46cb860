"""Paged decode's numbers: every pair of features, any order of pages, and the reference itself."""

from typing import Any

import pytest
import torch

from autotune.kernels.paged_decode.definition import DEFINITION
from autotune.kernels.paged_decode.inputs import CheckShape
from autotune.kernels.paged_decode.triton import counters
from tests.contract.covering import all_pairs, pairs_of
from tests.contract.interpreting import interpret
from tests.kernels.paged_decode.cases import (
    FACTORS,
    ON_GPU,
    Case,
    gpu_cases,
    has_float8,
    interpreted_cases,
    quick_cases,
    rows,
)
from tests.kernels.paged_decode.numerics import (
    case_failure,
    dense_decode,
    distant_failure,
    graph_failure,
    order_failure,
    poison_failure,
    shared_failure,
    streams_failure,
)

each_way = pytest.mark.parametrize(
    ("schedule", "combine"), [("split", "kernel"), ("split", "last"), ("flat", "kernel")]
)

INTERPRETED = [  # the others are slow together
    pytest.param(case, marks=[] if number % 6 == 0 and case in quick_cases() else [pytest.mark.slow])
    for number, case in enumerate(interpreted_cases())
]


@pytest.mark.parametrize("case", INTERPRETED, ids=str)
def test_interpreted_case(case: Case) -> None:
    assert interpret(case_failure, case, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("case", gpu_cases(), ids=str)
def test_gpu_case(case: Case) -> None:
    assert case_failure(case, "cuda") is None


@pytest.mark.slow
def test_every_pair_of_features_is_covered() -> None:
    held = {pair for row in rows()[:ON_GPU] for pair in pairs_of(row)}
    assert [pair for pair in all_pairs(FACTORS) if pair not in held] == []


def test_there_are_enough_cases_and_each_is_named() -> None:
    assert len(interpreted_cases()) >= 600
    assert len(quick_cases()) == 100 + 35
    float8 = list(filter(has_float8, interpreted_cases()))
    assert len(float8) > 250
    assert any(case.group == 71 for case in float8)
    assert any(case.head_dim == 512 for case in float8)
    assert len({str(case) for case in gpu_cases()}) == len(gpu_cases())
    count = {dtype: sum(case.dtype == dtype for case in gpu_cases()) for dtype in ("float16", "float32", "bfloat16")}
    assert count["bfloat16"] == count["float16"] > 60
    assert count["float32"] > 20


@each_way
@pytest.mark.slow
def test_interpreted_bits_do_not_depend_on_the_order_of_pages(schedule: str, combine: str) -> None:
    assert interpret(order_failure, schedule, combine, "cpu") is None


@pytest.mark.gpu
@each_way
def test_gpu_bits_do_not_depend_on_the_order_of_pages(schedule: str, combine: str) -> None:
    assert order_failure(schedule, combine, "cuda") is None


@each_way
def test_interpreted_sequences_may_share_one_row_of_pages(schedule: str, combine: str) -> None:
    assert interpret(shared_failure, schedule, combine, "cpu") is None


@pytest.mark.gpu
@each_way
def test_gpu_sequences_may_share_one_row_of_pages(schedule: str, combine: str) -> None:
    assert shared_failure(schedule, combine, "cuda") is None


POISONED = [(kv_dtype, where) for kv_dtype in ("float16", "int8", "float8_e4m3fn", "float8_e5m2") for where in "qkv"]


# Triton's interpreter takes NaN of e4m3, 0x7F and 0xFF, for 480 and -480 (3.6.0).
@pytest.mark.parametrize(
    ("kv_dtype", "where"),
    [
        pytest.param(*item, marks=[] if item[0] == "float16" else [pytest.mark.slow])
        for item in POISONED
        if item not in [("float8_e4m3fn", "k"), ("float8_e4m3fn", "v")]
    ],
)
def test_interpreted_nan_is_seen(kv_dtype: str, where: str) -> None:
    assert interpret(poison_failure, kv_dtype, where, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize(("kv_dtype", "where"), POISONED)
def test_gpu_nan_is_seen(kv_dtype: str, where: str) -> None:
    assert poison_failure(kv_dtype, where, "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize("pool", [2**20, 32])  # counters: of the second, one graph has its own
@each_way
def test_gpu_graphs_on_two_streams_do_not_disturb_each_other(
    schedule: str, combine: str, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "POOL_SIZE", pool)
    monkeypatch.setattr(counters, "_pools", {})
    assert streams_failure(schedule, combine) is None


DISTANT = [
    ("page", 2**30),  # the stride fits 32 bits, its multiples do not
    ("page", 2**31 + 16),
    ("slot", 2**28),
    ("head", 2**31 + 16),
]


@pytest.mark.parametrize(("axis", "stride"), DISTANT)
def test_interpreted_offsets_beyond_32_bits(axis: str, stride: int) -> None:
    try:
        torch.empty(16 * stride if axis == "slot" else 5 * stride + 2**18, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("the machine gives out no address space of this size")
    assert interpret(distant_failure, axis, stride, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize(("axis", "stride"), DISTANT)
def test_gpu_offsets_beyond_32_bits(axis: str, stride: int) -> None:
    assert distant_failure(axis, stride, "cuda") is None


@pytest.mark.gpu
@each_way
def test_gpu_graph_follows_the_lengths(schedule: str, combine: str) -> None:
    assert graph_failure(schedule, combine) is None


FEATURES: list[dict[str, Any]] = [
    {},
    {"window": 5},
    {"softcap": True},
    {"sinks": True},
    {"alibi": True},
    {"window": 3, "softcap": True, "sinks": True, "alibi": True},
]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("features", FEATURES, ids=lambda features: "-".join(features) or "plain")
@pytest.mark.parametrize("seq_q", [1, 3])
def test_reference_is_dense_attention(seq_q: int, features: dict[str, Any], layout: str) -> None:
    lengths = (0, 1, 4, 5, 33)
    sizes: dict[str, Any] = {"batch": 5, "heads": 6, "kv_heads": 2, "seq_q": seq_q, "max_context": 33, "head_dim": 24}
    sizes |= {"head_dim_v": 16, "page_size": 5, "dtype": "float32", "layout": layout}
    shape = CheckShape(**sizes, **features, lengths=lengths)
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cpu")
    out, lse = DEFINITION.reference(inputs)
    for sequence, length in enumerate(lengths):
        k, v = (
            dense_rows(cache, inputs.page_table[sequence], length, layout) for cache in (inputs.k_cache, inputs.v_cache)
        )
        expected, expected_lse = dense_decode(
            inputs.q[sequence],
            k,
            v,
            scale=inputs.scale,
            window=inputs.window,
            softcap=inputs.softcap,
            sinks=inputs.sinks,
            alibi_slopes=inputs.alibi_slopes,
        )
        torch.testing.assert_close(out[sequence], expected, rtol=0, atol=1e-13)
        torch.testing.assert_close(lse[sequence], expected_lse, rtol=0, atol=1e-13)


def dense_rows(cache: torch.Tensor, pages: torch.Tensor, length: int, layout: str) -> torch.Tensor:
    """Keys one by one: key j of a sequence lies in slot ``j % 5`` of its page ``j // 5``."""
    slots = cache if layout == "NHD" else cache.transpose(1, 2)
    rows = [slots[int(pages[key // 5]), key % 5] for key in range(length)]
    return torch.stack(rows) if rows else slots.new_zeros(0, *slots.shape[2:])


def test_dense_attention_by_hand() -> None:
    """The truth of these tests, against sums that are written out: one query, a window of two of three keys, a sink."""
    q, v = torch.tensor([[[2.0]]]), torch.tensor([1.0, 10.0, 100.0]).reshape(3, 1, 1)
    k = torch.tensor([5.0, 0.5, 1.0]).reshape(3, 1, 1)
    out, lse = dense_decode(
        q, k, v, window=2, scale=1.0, sinks=torch.tensor([3.0]), alibi_slopes=torch.tensor([0.5])
    )  # fmt: skip
    older, newer, sink = torch.tensor([1.0 - 0.5, 2.0, 3.0], dtype=torch.float64).exp()
    assert out.item() == pytest.approx((older * 10 + newer * 100).item() / (older + newer + sink).item())
    assert lse.item() == pytest.approx((older + newer + sink).log().item())
