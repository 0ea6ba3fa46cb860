"""Values of a wrong kind are refused by the argument's name in every public function, and not by Python or torch."""

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch

import autotune
from autotune.call_shapes import decode_shape, dense_shape, prefill_shape, varlen_shape
from autotune.errors import UsageError
from tests import sample
from tests.outside import row_scale

SHAPE: Final = sample.shape(64)
WRONG: Final = ([1], {"a": 1}, object(), 1.5, b"x")
CALLS: Final[dict[str, Callable[[Any], object]]] = {
    "operation": lambda value: autotune.tune(SHAPE, operation=value),
    "operation, of get_kernel": lambda value: autotune.get_kernel(SHAPE, device="NVIDIA H200", operation=value),
    "operation, of warm": lambda value: autotune.warm(SHAPE, operation=value),
    "operation, beside a shape": lambda value: autotune.tune([(value, SHAPE)]),
    "device": lambda value: autotune.tune(SHAPE, device=value),
    "device, of warm": lambda value: autotune.warm(SHAPE, device=value),
    "device, of get_kernel": lambda value: autotune.get_kernel(SHAPE, device=value),
    "target": lambda value: autotune.tune(SHAPE, target=value),
    "implementations": lambda value: autotune.tune(SHAPE, implementations=[value]),
    "implementation, of get_kernel": lambda value: autotune.get_kernel(SHAPE, implementation=value),
    "sampler": lambda value: autotune.tune(SHAPE, sampler=value),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
def test_a_value_that_is_no_name(call: str, value: object) -> None:
    with pytest.raises(UsageError) as refused:
        CALLS[call](value)
    assert f"{call.partition(',')[0]}={value!r}" in str(refused.value)


def test_implementations_that_are_no_list() -> None:
    with pytest.raises(UsageError, match=r"implementations=1.5 is not allowed; expected names such as"):
        autotune.tune(SHAPE, implementations=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("valid", "equal"), [({"causal": True}, {"causal": 1}), ({"window": 4}, {"window": 4.0})])
def test_an_option_that_equals_a_valid_one_of_an_earlier_call(valid: dict[str, Any], equal: dict[str, Any]) -> None:
    q = torch.zeros(1, 8, 2, 16)
    offsets = torch.tensor([0, 8], dtype=torch.int32)
    for call in (
        lambda options: dense_shape(q, q, q, **{"causal": False, "window": None, "softcap": False, **options}),
        lambda options: varlen_shape(
            q[0],
            q[0],
            q[0],
            offsets,
            offsets,
            (8, 8),
            **{"causal": False, "window": None, **options},
            features=(False, False),
        ),
    ):
        call(valid)
        with pytest.raises(UsageError, match="is not allowed"):
            call(equal)


def test_a_window_that_equals_a_valid_one_of_an_earlier_paged_call() -> None:
    q, pages = torch.zeros(3, 2, 16), torch.zeros(4, 16, 2, 16)
    table = torch.zeros(3, 1, dtype=torch.int32)
    options: dict[str, Any] = {"softcap": None, "sinks": None, "alibi_slopes": None, "causal": True}
    for shape_of in (decode_shape, prefill_shape):
        shape_of(q, pages, pages, table, "NHD", 1, None, options)
        for equal in (1.0, True):
            with pytest.raises(UsageError, match=f"window={equal}"):
                shape_of(q, pages, pages, table, "NHD", equal, None, options)  # type: ignore[arg-type]


@pytest.mark.parametrize("pages", [2**31, 2**60, 2**70, 2**31 - 1])
def test_more_pages_than_any_memory_holds(pages: int) -> None:
    with pytest.raises(UsageError, match=f"pages={pages} "):
        autotune.PagedKVCache(pages=pages, page_size=1024, kv_heads=1024, head_dim=256, device="cpu")


def test_a_size_of_a_users_kernel_that_no_tensor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    row_scale.isolate(monkeypatch)
    from tests.outside.decorated_kernels import scale

    scale.register()
    size = 2**62
    with pytest.raises(UsageError, match=rf"size={size}, float16: sizes=\({size},\) are not allowed; expected 0 or m"):
        scale.operation.cost(scale.shape_class(size=size))
