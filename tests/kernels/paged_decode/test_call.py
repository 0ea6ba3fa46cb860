"""The callable that users get: its results, and what it refuses before anything is launched."""

from typing import Any

import pytest
import torch

from autotune.errors import InputMismatchError, NotDifferentiableError
from autotune.kernels.paged_decode import KERNEL
from autotune.kernels.paged_decode.call import check_pages
from autotune.shape import PagedShape
from autotune.space import Config
from tests.kernels.conftest import Interpreter
from tests.kernels.paged_decode.numerics import call_failure, config_of

HALF = torch.float16
CONFIG = Config(config_of("split", work=1, num_stages=1))
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
        r"q is \(3, 1, 4, 16\) float16; this kernel takes \(2, 1, 4, 16\) float16",
    ),
    "queries": ({"q": torch.zeros(2, 2, 4, 16, dtype=HALF)}, r"q is \(2, 2, 4, 16\) float16; .* \(2, 1, 4, 16\)"),
    "dtype": ({"q": torch.zeros(2, 4, 16)}, r"q is \(2, 1, 4, 16\) float32; this kernel takes .* float16"),
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
    "cap of another shape": ({"softcap": 20.0}, r"softcap=20.0; this kernel was picked for softcap=False"),
    "sinks of another shape": ({"sinks": torch.zeros(4)}, r"sinks is given; this kernel was picked for sinks=False"),
    "no GPU": ({}, r"the tensors are on the CPU; expected a GPU"),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=[name.replace(" ", "-") for name in BAD])
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        CALL(**tensors(**changed))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "alibi_slopes is None; this kernel was picked for alibi=True"),
        (torch.zeros(3), r"alibi_slopes is \(3,\) float32; expected \(4,\), contiguous, of floating point"),
        (torch.zeros(4, dtype=torch.int32), r"alibi_slopes is \(4,\) int32; expected \(4,\)"),
    ],
)
def test_values_per_head_are_checked(values: torch.Tensor | None, message: str) -> None:
    call = KERNEL.bind(CONFIG, PagedShape(**SIZES, page_size=8, dtype="float16", alibi=True))
    with pytest.raises(InputMismatchError, match=message):
        call(**tensors(alibi_slopes=values))


def test_gradients_are_refused() -> None:
    with pytest.raises(NotDifferentiableError, match="no backward kernel"):
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
    arguments = (torch.tensor(table, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32))
    if message is None:
        check_pages(*arguments, pages=4, page_size=8)
        return
    with pytest.raises(InputMismatchError, match=message):
        check_pages(*arguments, pages=4, page_size=8)


def test_interpreted_call(interpreter: Interpreter) -> None:
    assert interpreter("call") is None


@pytest.mark.gpu
def test_gpu_call() -> None:
    assert call_failure("cuda") is None
