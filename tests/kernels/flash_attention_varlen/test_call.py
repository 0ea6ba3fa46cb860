"""The callable that users get: its results, and what it refuses before anything is launched."""

from typing import Any

import pytest
import torch

from autotune.errors import InputMismatchError, NotDifferentiableError
from autotune.kernels.flash_attention_varlen.definition import DEFINITION
from autotune.kernels.flash_attention_varlen.inputs import check_shape
from autotune.kernels.flash_attention_varlen.triton import KERNEL
from autotune.varlen_shape import VarlenShape
from tests.contract.interpreting import interpret
from tests.kernels.flash_attention_varlen.numerics import CONFIG, HALF, truth

HALF_TYPE = torch.float16
SIZES: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 2, "max_seq_q": 64, "head_dim": 16, "head_dim_v": 24}
CALL = KERNEL.bind(CONFIG, VarlenShape(**SIZES, dtype="float16"))


def tensors(**replaced: Any) -> dict[str, Any]:
    sizes = {"q": (7, 4, 16), "k": (9, 2, 16), "v": (9, 2, 24)}
    offsets = {"cu_seqlens_q": [0, 3, 7], "cu_seqlens_k": [0, 5, 9]}
    given = {name: torch.tensor(values, dtype=torch.int32) for name, values in offsets.items()}
    return {name: torch.zeros(size, dtype=HALF_TYPE) for name, size in sizes.items()} | given | replaced


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"q": torch.zeros(1, 7, 4, 16).half()}, r"q is \(1, 7, 4, 16\) float16; .* takes \(any, 4, 16\) float16"),
    "heads": ({"k": torch.zeros(9, 4, 16).half()}, r"k is \(9, 4, 16\) float16; this kernel takes \(any, 2, 16\)"),
    "width": ({"v": torch.zeros(9, 2, 16).half()}, r"v is \(9, 2, 16\) float16; this kernel takes \(any, 2, 24\)"),
    "dtype": ({"q": torch.zeros(7, 4, 16)}, r"q is \(7, 4, 16\) float32; this kernel takes .* float16"),
    "number": ({"v": torch.zeros(8, 2, 24).half()}, "k has 9 keys and v 8 values; expected as many"),
    "rows of no sequence": (
        {"cu_seqlens_q": torch.zeros(1, dtype=torch.int32), "cu_seqlens_k": torch.zeros(1, dtype=torch.int32)},
        "q has 7 rows of 0 sequences; expected none",
    ),
    "sequences": (
        {"cu_seqlens_k": torch.zeros(4, dtype=torch.int32)},
        "cu_seqlens_q has 2 sequences and cu_seqlens_k 3; expected as many",
    ),
    "offset dtype": (
        {"cu_seqlens_q": torch.zeros(3, dtype=torch.int64)},
        r"cu_seqlens_q is \(3,\) int64; expected \(sequences \+ 1\) int32",
    ),
    "no offsets": ({"cu_seqlens_k": torch.zeros(0, dtype=torch.int32)}, r"cu_seqlens_k is \(0,\) int32; expected"),
    "strided offsets": ({"cu_seqlens_k": torch.zeros(6, dtype=torch.int32)[::2]}, "cu_seqlens_k is .*, contiguous"),
    "list": ({"cu_seqlens_q": [0, 3, 7]}, "cu_seqlens_q is a list; expected"),
    "stride": ({"q": torch.zeros(7, 16, 4).half().mT}, "q has the strides .*; expected 1 in the last dimension"),
    "device": (
        {"cu_seqlens_q": torch.ones(3, dtype=torch.int32, device="meta")},
        "cu_seqlens_q on meta; expected one device",
    ),
    "zero scale": ({"scale": 0.0}, "scale=0.0 is not allowed; expected a positive number"),
    "cap of another shape": ({"softcap": 20.0}, "softcap=20.0; this kernel was picked without one"),
    "sinks of another shape": ({"sinks": torch.zeros(4)}, "sinks is given; this kernel was picked for sinks=False"),
    "field of the shape": ({"window": 5}, "window is no option of the call but a field of VarlenShape"),
    "option of others": (
        {"alibi_slopes": torch.ones(4)},
        "alibi_slopes is no option of this kernel; allowed: scale, softcap, sinks, seqused_q, seqused_k, kv_starts, "
        "return_lse, out, check",
    ),
    "no GPU": ({}, "the tensors are on the CPU; expected a GPU"),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=[name.replace(" ", "-") for name in BAD])
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        CALL(**tensors(**changed))


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        (None, "sinks is None; this kernel was picked for sinks=True"),
        (torch.zeros(3), r"sinks is \(3,\) float32; expected a tensor of \(4,\), contiguous, of floating point"),
        (torch.zeros(4, dtype=torch.int32), r"sinks is \(4,\) int32; expected a tensor"),
        (torch.zeros(8)[::2], r"sinks is \(4,\) float32; expected a tensor of \(4,\), contiguous"),
    ],
)
def test_sinks_are_one_number_a_head(sinks: Any, message: str) -> None:
    call = KERNEL.bind(CONFIG, VarlenShape(**SIZES, dtype="float16", sinks=True))
    with pytest.raises(InputMismatchError, match=message):
        call(**tensors(), sinks=sinks)


def test_gradients_are_refused() -> None:
    with pytest.raises(NotDifferentiableError, match="no backward kernel"):
        CALL(**tensors(q=torch.zeros(7, 4, 16, dtype=HALF_TYPE, requires_grad=True)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"cu_seqlens_q": [0, 8, 7]},
            r"cu_seqlens_q\[2\]=7 is less than 8 before it; expected offsets that never fall",
        ),
        ({"cu_seqlens_q": [1, 3, 7]}, "cu_seqlens_q begins with 1 and ends with 7; expected 0 and the 7 queries"),
        ({"cu_seqlens_k": [0, 3, 8]}, "cu_seqlens_k begins with 0 and ends with 8; expected 0 and the 9 keys"),
    ],
)
def test_offsets_are_read_on_demand(
    changed: dict[str, list[int]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)  # nothing is launched
    given = tensors(**{name: torch.tensor(values, dtype=torch.int32) for name, values in changed.items()})
    with pytest.raises(InputMismatchError, match=message):
        CALL(**given, check=True)


def call_failure(device: str) -> str | None:
    """Call what ``bind`` returns: into a buffer, with the logarithm, without queries, and without keys."""
    inputs = DEFINITION.make_inputs(check_shape(HALF, [(9, 12), (0, 5), (20, 3)]), seed=1, device=device)
    call = KERNEL.bind(CONFIG, HALF)
    expected, logarithms = truth(inputs, torch.float64)
    buffer = torch.empty_like(inputs.q)
    out, lse = call(*inputs.tensors, return_lse=True, out=buffer, check=True)
    if out is not buffer or not torch.equal(out, call(*inputs.tensors)):
        return "results depend on the buffer"
    if (out - expected).abs().max() > 2e-3 or not torch.allclose(lse.double(), logarithms, rtol=0, atol=1e-5):
        return "results are wrong"
    none = torch.zeros(4, dtype=torch.int32, device=device)
    if call(inputs.q[:0], inputs.k, inputs.v, none, inputs.cu_seqlens_k).shape != (0, 4, 32):
        return "no queries have results"
    blind, lse = call(inputs.q, inputs.k[:0], inputs.v[:0], inputs.cu_seqlens_q, none, return_lse=True)
    return None if not blind.any() and bool((lse == -torch.inf).all()) else "without keys there is something"


def test_interpreted_call() -> None:
    assert interpret(call_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_call() -> None:
    assert call_failure("cuda") is None
