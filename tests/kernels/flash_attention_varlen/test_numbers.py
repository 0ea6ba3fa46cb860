"""Numbers of packed sequences in every order: odd lengths, missing ones, strides, neighbours, and hostile offsets.

Pairs of all features and parameters are of the contract suite.
"""

from typing import Any, Final

import pytest

from tests.contract.interpreting import interpret
from tests.kernels.flash_attention_varlen.numerics import (
    HOSTILE,
    ORDERS,
    config_of,
    graph_failure,
    hostile_failure,
    lengths_failure,
    many_failure,
    neighbours_failure,
    strides_failure,
)

Lengths = list[tuple[int, int]]
CASES: Final[dict[str, tuple[Lengths, dict[str, Any]]]] = {
    "one": ([(37, 37)], {}),
    "zero lengths": ([(0, 0), (5, 0), (33, 40), (0, 9), (0, 0)], {}),
    "more queries than keys": ([(40, 7), (9, 9)], {}),
    "more keys than queries": ([(1, 90), (3, 70), (33, 34)], {}),
    "full": ([(33, 40), (0, 3), (7, 65)], {"causal": False}),
    "two-sided window": ([(33, 60), (40, 33), (5, 0)], {"causal": False, "window": 9}),
    "window, softcap and sinks": ([(40, 70), (0, 0), (5, 3)], {"window": 20, "softcap": True, "sinks": True}),
    "sinks where no key is": ([(4, 0), (9, 3)], {"sinks": True, "kv_heads": 4}),
    "odd heads": ([(21, 21), (13, 50)], {"heads": 5, "kv_heads": 1, "head_dim": 40, "head_dim_v": 24}),
    "float32": ([(21, 21), (13, 50)], {"dtype": "float32", "causal": False}),
}
by_case = pytest.mark.parametrize(
    ("lengths", "fields"),
    [
        pytest.param(*case, id=name.replace(" ", "-"), marks=[] if name == "zero lengths" else [pytest.mark.slow])
        for name, case in CASES.items()
    ],
)
on_gpu = pytest.mark.parametrize(
    ("lengths", "fields"), [pytest.param(*case, id=name.replace(" ", "-")) for name, case in CASES.items()]
)


@by_case
def test_interpreted_lengths_are_right_in_every_order(lengths: Lengths, fields: dict[str, Any]) -> None:
    assert interpret(lengths_failure, lengths, fields, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@on_gpu
def test_gpu_lengths_are_right_in_every_order(lengths: Lengths, fields: dict[str, Any], dtype: str) -> None:
    assert lengths_failure(lengths, {"dtype": dtype} | fields, "cuda") is None


@pytest.mark.slow
@pytest.mark.parametrize("order", [ORDERS[0], ORDERS[2]], ids=lambda order: order[0])
def test_interpreted_sequences_are_found_among_many(order: tuple[str, str, str]) -> None:
    assert interpret(many_failure, 258, config_of(*order), "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("count", [256, 257, 258, 600])
def test_gpu_sequences_are_found_among_many(count: int, order: tuple[str, str, str]) -> None:
    assert many_failure(count, config_of(*order), "cuda") is None


@pytest.mark.slow
def test_interpreted_strides_may_be_any() -> None:
    assert interpret(strides_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_strides_may_be_any() -> None:
    assert strides_failure("cuda") is None


@pytest.mark.slow
def test_interpreted_sequences_do_not_touch_each_other() -> None:
    assert interpret(neighbours_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_sequences_do_not_touch_each_other() -> None:
    assert neighbours_failure("cuda") is None


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_interpreted_launch_stays_within_its_tensors(name: str) -> None:
    assert interpret(hostile_failure, name, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", HOSTILE)
def test_gpu_launch_stays_within_its_tensors(name: str) -> None:
    assert hostile_failure(name, "cuda") is None


@pytest.mark.gpu
def test_gpu_graph_follows_another_division() -> None:
    assert graph_failure() is None
