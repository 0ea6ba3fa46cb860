"""Flash attention's numbers: every pair of features, huge strides, and the reference itself."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.kernels.flash_attention.reference import attention_reference
from autotune.shape import MAX_LENGTH
from tests.contract.interpreting import interpret
from tests.kernels.cases import PROBLEM, PROGRAM, Case, gpu_cases, interpreted_cases, row_of, slow_cases
from tests.kernels.numerics import case_failure, dense_attention, distant_failure

FEATURES = {**PROGRAM, **PROBLEM}


INTERPRETED = [  # every fourth is quick; the contract suite interprets pairs of all features, too
    pytest.param(case, marks=[pytest.mark.slow] if number % 8 or case in slow_cases() else [])
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
    """Asked of both runs: of fp16 and fp32, and of the half types, where bf16 repeats fp16."""
    rows = [row_of(case) for case in interpreted_cases()]
    running = [row for row in rows if row["seq_q"] and row["seq_kv"]]
    # Too much shared memory, or too many registers.
    wide = [(160, 160), (192, 192), (256, 256)]
    impossible = [*itertools.product(wide, [(64, 256), (256, 32)]), ((192, 128), (64, 256))]
    missing = [
        ((first, a), (second, b))
        for first, second in itertools.combinations(FEATURES, 2)
        for a, b in itertools.product(FEATURES[first], FEATURES[second])
        # What a row without queries or keys holds beside its zero, it does not test.
        if not any(row[first] == a and row[second] == b for row in (rows if is_empty(first, a, second, b) else running))
        and (a, b) not in impossible
    ]
    assert missing == []


def is_empty(first: str, a: object, second: str, b: object) -> bool:
    return any(name in {"seq_q", "seq_kv"} and value == 0 for name, value in ((first, a), (second, b)))


def test_there_are_enough_cases_and_each_is_named() -> None:
    interpreted, on_gpu = interpreted_cases(), gpu_cases()
    assert len(interpreted) >= 400
    assert len(on_gpu) >= 400
    assert len({str(case) for case in on_gpu}) == len(on_gpu)
    count = {dtype: sum(case.dtype == dtype for case in on_gpu) for dtype in ("float16", "float32", "bfloat16")}
    assert count["bfloat16"] == count["float16"]
    assert count["float32"] > 30


PLAIN = Case(
    dtype="float16",
    head_dim=64,
    head_dim_v=64,
    block_q=64,
    block_k=64,
    num_stages=2,
    causal=False,
    window=None,
    softcap=None,
    scale=None,
    lse=True,
    loads="pointer",
    layout="contiguous",
    batch=1,
    heads=2,
    kv_heads=1,
    seq_q=150,
    seq_kv=200,
)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq_q", [150, 250])
@pytest.mark.parametrize("window", [1, 150, 201, 10_000])
@pytest.mark.slow
def test_interpreted_windows_up_to_any_length(window: int, seq_q: int, causal: bool) -> None:
    case = replace(PLAIN, window=window, seq_q=seq_q, causal=causal)
    assert interpret(case_failure, case, "cpu") is None


def test_interpreted_window_of_the_largest_length() -> None:
    assert interpret(case_failure, replace(PLAIN, window=MAX_LENGTH), "cpu") is None


DISTANT = [
    ("batch", 2**30),  # the stride fits 32 bits, its double does not
    ("batch", 2**31 + 16),
    ("head", 2**30),
    ("row", 2**23),
]


@pytest.mark.parametrize("loads", ["pointer", "descriptor"])
@pytest.mark.parametrize(("axis", "stride"), DISTANT)
def test_interpreted_offsets_beyond_32_bits(axis: str, stride: int, loads: str) -> None:
    try:
        torch.empty(3 * stride if axis != "row" else 300 * stride, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("the machine gives out no address space of this size")
    assert interpret(distant_failure, axis, stride, loads, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("loads", ["pointer", "descriptor"])
@pytest.mark.parametrize(("axis", "stride"), DISTANT)
def test_gpu_offsets_beyond_32_bits(axis: str, stride: int, loads: str) -> None:
    assert distant_failure(axis, stride, loads, "cuda") is None


REFERENCE_CALLS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": 3},
    {"causal": True, "window": 5},
    {"softcap": 2.0},
    {"scale": 0.7},
    {"causal": True, "window": 4, "softcap": 1.5, "scale": 0.3},
]


@pytest.mark.parametrize("call", REFERENCE_CALLS, ids=lambda call: "-".join(call) or "plain")
@pytest.mark.parametrize(("seq_q", "seq_kv"), [(1, 1), (7, 7), (5, 13), (13, 5), (1, 9)])
def test_reference_is_dense_attention(seq_q: int, seq_kv: int, call: dict[str, Any]) -> None:
    q, k, v = torch.randn(2, seq_q, 6, 24), torch.randn(2, seq_kv, 2, 24), torch.randn(2, seq_kv, 2, 16)
    out, lse = attention_reference(q, k, v, **call, max_score_bytes=8 * seq_kv * 2)  # two queries a chunk
    expected, expected_lse = dense_attention(q, k, v, **{"scale": 24**-0.5, **call})
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(lse, expected_lse, rtol=0, atol=1e-13)


def test_dense_attention_by_hand() -> None:
    """The truth of these tests, against sums that are written out: one query that sees two of three keys."""
    q, v = torch.tensor([[[[2.0]]]]), torch.tensor([1.0, 10.0, 100.0]).reshape(1, 3, 1, 1)
    k = torch.tensor([5.0, 0.5, 1.0]).reshape(1, 3, 1, 1)
    out, lse = dense_attention(q, k, v, window=2, scale=1.0)
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64).exp()
    assert out.item() == pytest.approx((weights[0] * 10 + weights[1] * 100).item() / weights.sum().item())
    assert lse.item() == pytest.approx(weights.sum().log().item())


@pytest.mark.parametrize("causal", [False, True])
def test_reference_is_torch_sdpa(causal: bool) -> None:
    q, k, v = (torch.randn(2, 33, heads, 32, dtype=torch.float64) for heads in (6, 2, 2))
    out, _ = attention_reference(q, k, v, causal=causal)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal, enable_gqa=True
    )
    torch.testing.assert_close(out, expected.transpose(1, 2), rtol=0, atol=1e-13)
