"""The callable that users get: its results, and what it refuses before anything is launched."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.errors import InputMismatchError, NotDifferentiableError
from autotune.kernels.paged_cache.call import check_pages
from autotune.kernels.paged_decode.triton import KERNEL
from autotune.shape import PagedShape
from tests.contract.implementations.paged_decode_triton import config_of
from tests.contract.interpreting import interpret
from tests.kernels.paged_decode.numerics import call_failure

HALF = torch.float16
CONFIG = config_of("split", work=1, num_stages=1)
SIZES: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 2, "max_context": 64, "head_dim": 16, "head_dim_v": 24}
SHAPE = PagedShape(**SIZES, page_size=8, dtype="float16")
CALL = KERNEL.bind(CONFIG, SHAPE)


def tensors(**replaced: Any) -> dict[str, Any]:
    sizes = {"q": (2, 4, 16), "k_cache": (9, 8, 2, 16), "v_cache": (9, 8, 2, 24)}
    integers = {"page_table": torch.zeros(2, 5, dtype=torch.int32), "seq_lens": torch.ones(2, dtype=torch.int32)}
    return {name: torch.zeros(size, dtype=HALF) for name, size in sizes.items()} | integers | replaced


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "batch": (
        {"q": torch.zeros(3, 4, 16, dtype=HALF)},
        r"q is \(3, 4, 16\) float16; this kernel takes \(2, 4, 16\) float16",
    ),
    "queries": ({"q": torch.zeros(2, 2, 4, 16, dtype=HALF)}, r"q is \(2, 2, 4, 16\) float16; .* \(2, 1, 4, 16\)"),
    "dtype": (
        {"q": torch.zeros(2, 4, 16)},
        r"q is \(2, 4, 16\) float32; this kernel takes \(2, 4, 16\) float16",
    ),
    "rank": (
        {"q": torch.zeros(4, 16, dtype=HALF)},
        r"q is \(4, 16\) float16; this kernel takes \(2, 1, 4, 16\) float16",
    ),
    "list": ({"seq_lens": [3, 9]}, r"seq_lens is a list; this kernel takes \(2\) int32"),
    "layout": (
        {"k_cache": torch.zeros(9, 2, 8, 16, dtype=HALF)},
        r"k_cache is \(9, 2, 8, 16\) float16; this kernel takes \(any, 8, 2, 16\) float16 \(NHD\)",
    ),
    "KV dtype": ({"k_cache": torch.zeros(9, 8, 2, 16)}, r"k_cache is .* float32; this kernel takes .* float16"),
    "width": ({"v_cache": torch.zeros(9, 8, 2, 16, dtype=HALF)}, r"v_cache is \(9, 8, 2, 16\) .* \(any, 8, 2, 24\)"),
    "pages": ({"v_cache": torch.zeros(8, 8, 2, 24, dtype=HALF)}, "k_cache has 9 pages and v_cache 8; expected as many"),
    "page index dtype": (
        {"page_table": torch.zeros(2, 5, dtype=torch.int64)},
        r"page_table is \(2, 5\) int64; this kernel takes \(2, any\) int32",
    ),
    "table of another batch": ({"page_table": torch.zeros(1, 5, dtype=torch.int32)}, r"page_table is \(1, 5\) int32"),
    "length dtype": ({"seq_lens": torch.ones(2)}, r"seq_lens is \(2,\) float32; this kernel takes \(2\) int32"),
    "stride": (
        {"k_cache": torch.zeros(9, 8, 16, 2, dtype=HALF).mT},
        r"k_cache has the strides .*; expected 1 in the last dimension",
    ),
    "device": ({"seq_lens": torch.ones(2, dtype=torch.int32, device="meta")}, "seq_lens on meta; expected one device"),
    "zero scale": ({"scale": 0.0}, r"scale=0.0 is not allowed; expected a positive number"),
    "true cap": ({"softcap": True}, "softcap=True is not allowed; expected a positive number"),
    "cap in words": ({"softcap": "30"}, "softcap='30' is not allowed; expected a positive number"),
    "true scale": ({"scale": True}, "scale=True is not allowed; expected a positive number"),
    "cap of another shape": ({"softcap": 20.0}, r"softcap=20.0; this kernel was picked without one"),
    "sinks of another shape": ({"sinks": torch.zeros(4)}, r"sinks is given; this kernel was picked for sinks=False"),
    "needless scale": ({"k_scale": 0.5}, "k_scale is 0.5; expected None for a cache of float16"),
    "field of the shape": (
        {"window": 5},
        "window is no option of the call but a field of PagedShape, and this kernel was picked for window=None; pick "
        "another with get_kernel",
    ),
    "layout of the shape": ({"layout": "HND"}, "layout is no option .* was picked for layout='NHD'"),
    "mask of the shape": ({"causal": True}, "causal is no option .* was picked for causal=True"),
    "hint of the shape": ({"mean_context": 9}, "mean_context is no option .* was picked for mean_context=64"),
    "unknown option": (
        {"k_scales": True},
        "k_scales is no option of this kernel; allowed: scale, softcap, sinks, alibi_slopes, k_scale, v_scale, ",
    ),
    "no GPU": ({}, r"the tensors are on the CPU; expected a GPU \(or TRITON_INTERPRET=1, to check numbers\)"),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=[name.replace(" ", "-") for name in BAD])
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        CALL(**tensors(**changed))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "alibi_slopes is None; this kernel was picked for alibi=True"),
        (torch.zeros(3), r"alibi_slopes is \(3,\) float32; expected a tensor of \(4,\), contiguous, of floating point"),
        (torch.zeros(4, dtype=torch.int32), r"alibi_slopes is \(4,\) int32; expected a tensor of \(4,\)"),
        ([1.0] * 4, r"alibi_slopes is a list; expected a tensor of \(4,\)"),
    ],
)
def test_values_per_head_are_checked(values: Any, message: str) -> None:
    call = KERNEL.bind(CONFIG, PagedShape(**SIZES, page_size=8, dtype="float16", alibi=True))
    with pytest.raises(InputMismatchError, match=message):
        call(**tensors(alibi_slopes=values))


@pytest.mark.parametrize(
    ("kv_dtype", "k_scale", "message"),
    [
        ("int8", None, r"k_scale is None; expected a float32 tensor of \(9, 8, 2\) for a cache of int8"),
        ("int8", 0.5, r"k_scale is 0.5; expected a float32 tensor of \(9, 8, 2\) for a cache of int8"),
        (
            "float8_e5m2",
            None,
            r"k_scale is None; expected a float32 tensor of \(\) or \(2,\) for a cache of float8_e5m2",
        ),
        ("float8_e5m2", [0.5, 0.5], r"k_scale is a list; expected a float32 tensor of \(\) or \(2,\)"),
    ],
)
def test_a_scale_that_is_missing_or_no_tensor_is_refused(kv_dtype: str, k_scale: Any, message: str) -> None:
    call = KERNEL.bind(CONFIG, PagedShape(**SIZES, page_size=8, dtype="float16", kv_dtype=kv_dtype))
    caches = {name: tensors()[name].to(getattr(torch, kv_dtype)) for name in ("k_cache", "v_cache")}
    with pytest.raises(InputMismatchError, match=message):
        call(**tensors(**caches, k_scale=k_scale))


def test_gradients_are_refused() -> None:
    with pytest.raises(NotDifferentiableError, match="q requires gradients, and there is no backward kernel"):
        CALL(**tensors(q=torch.zeros(2, 4, 16, dtype=HALF, requires_grad=True)))


@pytest.mark.parametrize(
    ("lengths", "table", "message"),
    [
        ([17, 3], [[0, 1], [2, 2]], r"seq_lens\[0\]=17 is not allowed; page_table holds 2 pages of 8 a sequence"),
        ([3, -1], [[0, 1], [2, 2]], r"seq_lens\[1\]=-1 is not allowed; .* expected 0 to 16"),
        ([16, 9], [[0, 1], [2, 4]], r"page_table\[1, 1\]=4 is not a page; expected 0 to 3 for the 9 keys"),
        ([16, 0], [[0, -1], [9, 9]], r"page_table\[0, 1\]=-1 is not a page"),
        ([16, 8], [[0, 1], [2, -7]], None),
    ],
)
def test_pages_are_read_on_demand(lengths: list[int], table: list[list[int]], message: str | None) -> None:
    if message is None:
        found_in_pages(lengths, table, window=None, queries=1)
        return
    with pytest.raises(InputMismatchError, match=message):
        found_in_pages(lengths, table, window=None, queries=1)


def found_in_pages(
    lengths: list[int], table: list[list[int]], *, window: int | None, queries: int | torch.Tensor
) -> None:
    shape = PagedShape(batch=2, heads=1, head_dim=16, max_context=16, page_size=8, window=window)
    rows, counts = (torch.tensor(values, dtype=torch.int32) for values in (table, lengths))
    check_pages(shape, rows, counts, pages=4, queries=queries)


@pytest.mark.parametrize(("window", "queries"), [(8, 1), (7, 2), (1, 1)])
def test_pages_before_every_window_may_be_anything(window: int, queries: int) -> None:
    found_in_pages([16, 3], [[-1, 1], [2, 99]], window=window, queries=queries)


@pytest.mark.parametrize(("window", "queries"), [(9, 1), (8, 2), (1, 9)])
def test_pages_that_a_window_reaches_must_exist(window: int, queries: int) -> None:
    with pytest.raises(InputMismatchError, match=r"page_table\[0, 0\]=-1 is not a page"):
        found_in_pages([16, 3], [[-1, 1], [2, 99]], window=window, queries=queries)


@pytest.mark.parametrize("window", [None, 9])
def test_pages_of_a_sequence_without_a_query_may_be_anything(window: int | None) -> None:
    lengths, table = [16, 3], [[-1, 99], [2, 99]]
    found_in_pages(lengths, table, window=window, queries=torch.tensor([0, 2], dtype=torch.int32))
    with pytest.raises(InputMismatchError, match=r"page_table\[0, 0\]=-1 is not a page"):
        found_in_pages(lengths, table, window=window, queries=torch.tensor([1, 0], dtype=torch.int32))


INTEGERS = torch.zeros(6, dtype=torch.int32)
STRIDED: dict[str, tuple[dict[str, torch.Tensor], str | None]] = {
    "table of one page": ({"page_table": INTEGERS.as_strided((2, 1), (1, 3))}, None),
    "table": ({"page_table": INTEGERS.as_strided((2, 2), (1, 3))}, r"page_table has the strides \(1, 3\); expected 1"),
    "one length": ({"q": torch.zeros(1, 4, 16).half(), "page_table": INTEGERS[None], "seq_lens": INTEGERS[::6]}, None),
    "lengths": ({"seq_lens": INTEGERS[::3]}, r"seq_lens has the strides \(3,\); expected 1 in the last"),
}


@pytest.mark.parametrize(("changed", "message"), STRIDED.values(), ids=[name.replace(" ", "-") for name in STRIDED])
def test_only_of_several_elements_the_stride_is_judged(changed: dict[str, torch.Tensor], message: str | None) -> None:
    call = KERNEL.bind(CONFIG, replace(SHAPE, batch=len(tensors(**changed)["q"])))
    nothing_else = "the tensors are on the CPU; expected a GPU"  # is wrong with them
    with pytest.raises(InputMismatchError, match=message or nothing_else):
        call(**tensors(**changed))


@pytest.mark.slow
def test_interpreted_call() -> None:
    assert interpret(call_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_call() -> None:
    assert call_failure("cuda") is None
