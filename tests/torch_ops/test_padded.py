"""Ops of attention over a padded batch: compiled, mapped, cast, and checked by their sizes alone."""

from typing import Any

import pytest
import torch

import autotune
from autotune.errors import InputMismatchError
from tests.contract.interpreting import interpret
from tests.torch_ops import padded_traces
from tests.torch_ops.calls import FORMS, FUNCTIONS, dense, varlen

SLOW = [pytest.mark.slow]
META: dict[str, Any] = {name: each.to("meta") for name, each in zip("qkv", dense(9), strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_torch_finds_no_fault_with_an_op(form: str) -> None:
    assert interpret(padded_traces.opcheck_failure, form) is None


@pytest.mark.parametrize("backend", [pytest.param(name, marks=SLOW) for name in ("eager", "aot_eager", "inductor")])
def test_what_is_compiled_computes_the_same(backend: str) -> None:
    assert interpret(padded_traces.compiled_failure, backend) is None


@pytest.mark.slow
def test_numbers_are_mapped_with_their_batch() -> None:
    assert interpret(padded_traces.mapped_failure) is None


def test_autocast_casts_no_number() -> None:
    assert interpret(padded_traces.autocast_failure) is None


def test_without_values_results_have_their_sizes() -> None:
    given: dict[str, Any] = META | padded_traces.numbers("meta")
    out, lse = autotune.attention(**given, return_lse=True)
    assert (out.shape, out.device.type) == ((2, 9, 4, 16), "meta")
    assert (lse.shape, lse.stride(), lse.dtype) == ((2, 4, 9), (36, 1, 4), torch.float32)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "number": (
        {"kv_lens": torch.zeros(3, dtype=torch.int32, device="meta")},
        r"kv_lens is \(3,\) int32; expected \(2,",
    ),
    "type": ({"kv_starts": torch.zeros(2, device="meta")}, r"kv_starts is \(2,\) float32; expected \(2,\) int32"),
    "place": ({"q_lens": torch.zeros(2, dtype=torch.int32)}, "q is on meta, q_lens on cpu; expected one device"),
    "keys": ({**padded_traces.numbers("meta"), "v": META["v"][:, :8]}, "k has 9 keys and v 8 values"),
    "strided out": (
        {**padded_traces.numbers("meta"), "out": META["q"].transpose(1, 2).contiguous().transpose(1, 2)},
        "out has the strides .*; expected a contiguous tensor",
    ),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=BAD)
def test_what_sizes_alone_show_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        autotune.attention(**META | changed)


def test_numbers_of_packed_sequences_are_checked_by_their_sizes() -> None:
    function, _ = FUNCTIONS["attention_varlen"]
    tensors = {name: each.to("meta") for name, each in varlen(((3, 33), (5, 20))).items()}
    with pytest.raises(InputMismatchError, match=r"seqused_k is \(3,\) int32; expected \(2,\) int32"):
        function(**tensors, seqused_k=torch.zeros(3, dtype=torch.int32, device="meta"))
