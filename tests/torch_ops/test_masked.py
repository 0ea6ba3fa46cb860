"""Ops of attention with a mask and sinks: compiled, mapped, cast, and checked by their sizes alone."""

from typing import Any

import pytest
import torch

import autotune
from autotune.errors import InputMismatchError, UsageError
from tests.contract.interpreting import interpret
from tests.torch_ops import masked_traces
from tests.torch_ops.calls import FORMS, HEADS, dense

SLOW = [pytest.mark.slow]
SEQ = masked_traces.SEQ
META: dict[str, Any] = {name: each.to("meta") for name, each in zip("qkv", dense(SEQ), strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_torch_finds_no_fault_with_an_op(form: str) -> None:
    assert interpret(masked_traces.opcheck_failure, form) is None


@pytest.mark.parametrize("backend", [pytest.param(name, marks=SLOW) for name in ("eager", "aot_eager", "inductor")])
def test_what_is_compiled_computes_the_same(backend: str) -> None:
    assert interpret(masked_traces.compiled_failure, backend) is None


@pytest.mark.slow
def test_a_mask_is_mapped_with_its_batch_or_shared() -> None:
    assert interpret(masked_traces.mapped_failure) is None


@pytest.mark.slow
def test_autocast_casts_a_mask_of_other_16_bits_alone() -> None:
    assert interpret(masked_traces.autocast_failure) is None


def test_without_values_results_have_their_sizes() -> None:
    given: dict[str, Any] = META | masked_traces.operands("meta")
    out, lse = autotune.attention(**given, causal=True, return_lse=True)
    assert (out.shape, out.device.type) == ((2, SEQ, HEADS, 16), "meta")
    assert (lse.shape, lse.dtype) == ((2, HEADS, SEQ), torch.float32)


def meta(*sizes: int, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "sizes": ({"attn_mask": meta(3, 1, SEQ, SEQ)}, r"attn_mask is \(3, 1, 9, 9\) bool; expected \(2 or 1,"),
    "type": ({"attn_mask": meta(2, 1, SEQ, SEQ, dtype=torch.int8)}, r"attn_mask is .* int8; expected"),
    "place": ({"sinks": torch.zeros(HEADS)}, "q is on meta, sinks on cpu; expected one device"),
    "sinks": ({"sinks": meta(HEADS + 1, dtype=torch.float32)}, r"sinks is \(5,\) float32; expected \(4,\)"),
    "padding": (
        {"attn_mask": meta(1, 1, 1, SEQ), "q_lens": meta(2, dtype=torch.int32)},
        "attn_mask and q_lens are both given",
    ),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=BAD)
def test_what_sizes_alone_show_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        autotune.attention(**META | changed)


def test_mapped_sinks_are_refused() -> None:
    sinks = torch.zeros(2, HEADS)
    q, k, v = (each.expand(2, *each.shape) for each in dense(SEQ))
    with torch.no_grad(), pytest.raises(UsageError, match=r"sinks are mapped by torch.vmap; expected the same for all"):
        torch.vmap(lambda q, k, v, sinks: autotune.attention(q, k, v, sinks=sinks))(q, k, v, sinks)
