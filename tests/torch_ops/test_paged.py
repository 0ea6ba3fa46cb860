"""Paged calls over tensors without memory: refused as eager ones are, before anything is compiled or exported."""

import operator
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch

import autotune
from autotune.errors import InputMismatchError


def meta(*sizes: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


INT32: Final = torch.int32
CACHE: Final = meta(32, 16, 2, 64)
INT8: Final = meta(32, 16, 2, 64, dtype=torch.int8)
DECODE: Final[dict[str, Any]] = {
    "q": meta(4, 8, 64),
    "k_cache": CACHE,
    "v_cache": CACHE,
    "page_table": meta(4, 8, dtype=INT32),
    "seq_lens": meta(4, dtype=INT32),
}
PREFILL: Final[dict[str, Any]] = {**DECODE, "q": meta(40, 8, 64), "cu_seqlens_q": meta(5, dtype=INT32)}
APPEND: Final[dict[str, Any]] = {
    "k": meta(7, 2, 64),
    "v": meta(7, 2, 64),
    "k_cache": CACHE,
    "v_cache": CACHE,
    "slots": meta(7, dtype=torch.int64),
}
REFUSED: Final[dict[str, tuple[Callable[..., Any], dict[str, Any], str]]] = {
    "type of pages": (autotune.paged_decode, {**DECODE, "page_table": meta(4, 8, dtype=torch.int64)}, "page_table is"),
    "rows of pages": (autotune.paged_decode, {**DECODE, "page_table": meta(3, 8, dtype=INT32)}, r"\(4, any\) int32"),
    "lengths": (autotune.paged_decode, {**DECODE, "seq_lens": meta(3, dtype=INT32)}, r"seq_lens is \(3,\) int32"),
    "sinks": (autotune.paged_decode, {**DECODE, "sinks": meta(7)}, r"sinks is \(7,\) float16; expected .* \(8,\)"),
    "slopes": (autotune.paged_decode, {**DECODE, "alibi_slopes": meta(3)}, r"alibi_slopes is \(3,\)"),
    "softcap": (autotune.paged_decode, {**DECODE, "softcap": -1.0}, "softcap=-1.0 is not allowed"),
    "scale": (autotune.paged_decode, {**DECODE, "scale": -1.0}, "scale=-1.0 is not allowed"),
    "pages of values": (autotune.paged_decode, {**DECODE, "v_cache": CACHE[:5]}, "32 pages and v_cache 5"),
    "heads of values": (autotune.paged_decode, {**DECODE, "v_cache": meta(32, 16, 4, 64)}, "v_cache is"),
    "width": (autotune.paged_decode, {**DECODE, "q": meta(4, 8, 128)}, r"\(any, 16, 2, 128\) float16 \(NHD\)"),
    "scales": (autotune.paged_decode, {**DECODE, "k_cache": INT8, "v_cache": INT8}, "k_scale is None"),
    "type of offsets": (
        autotune.paged_prefill,
        {**PREFILL, "cu_seqlens_q": meta(5, dtype=torch.int64)},
        r"cu_seqlens_q is \(5,\) int64",
    ),
    "offsets": (autotune.paged_prefill, {**PREFILL, "cu_seqlens_q": meta(4, dtype=INT32)}, r"takes \(5\) int32"),
    "slots": (autotune.append_kv, {**APPEND, "slots": meta(7)}, "slots is"),
    "heads of tokens": (autotune.append_kv, {**APPEND, "k": meta(7, 3, 64)}, r"k is \(7, 3, 64\)"),
}


@pytest.mark.parametrize(("call", "arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_eager_calls_refuse_is_refused_without_memory(
    call: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputMismatchError, match=message):
        call(**arguments)


def test_what_fits_has_its_sizes() -> None:
    assert autotune.paged_decode(**DECODE, sinks=meta(8)).shape == (4, 8, 64)
    assert autotune.paged_decode(**{**DECODE, "q": meta(4, 2, 8, 64)}).shape == (4, 2, 8, 64)
    assert autotune.paged_prefill(**PREFILL).shape == (40, 8, 64)
    autotune.append_kv(**APPEND)


class Decode(torch.nn.Module):
    def __init__(self, softcap: float) -> None:
        super().__init__()
        self.softcap = softcap

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return autotune.paged_decode(*tensors, softcap=self.softcap)


def test_an_export_refuses_a_number_that_no_kernel_takes() -> None:
    tensors = tuple(torch.zeros(each.shape, dtype=each.dtype) for each in DECODE.values())
    torch.export.export(Decode(20.0), tensors)
    with pytest.raises(Exception, match=r"softcap=-1\.0 is not allowed; expected a positive number"):
        torch.export.export(Decode(-1.0), tensors)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (operator.methodcaller("requires_grad_"), "requires gradients, .* call it under torch.no_grad"),
        (lambda tensor: None, "v is None; expected a tensor"),
    ],
    ids=["gradients", "no tensor"],
)
def test_dynamo_quotes_what_is_refused_while_it_traces(second: Callable[[torch.Tensor], Any], message: str) -> None:
    q = torch.zeros(1, 16, 2, 64)
    compiled = torch.compile(autotune.attention, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=message):
        compiled(q, q, second(q.clone()))
