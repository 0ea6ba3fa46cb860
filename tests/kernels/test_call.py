"""The callable that users get: its results, and what it refuses before anything is launched."""

from typing import Any

import pytest
import torch

from autotune.errors import InputMismatchError, NotDifferentiableError
from autotune.kernels.flash_attention.triton import KERNEL
from autotune.shape import AttentionShape
from tests.contract.implementations.flash_attention_triton import TINY
from tests.contract.interpreting import interpret
from tests.kernels.numerics import call_failure

SHAPE = AttentionShape(batch=2, heads=4, kv_heads=2, seq_q=8, seq_kv=16, head_dim=16, head_dim_v=24, dtype="float16")
CALL = KERNEL.bind(TINY, SHAPE)


def tensors(**replaced: torch.Tensor) -> dict[str, torch.Tensor]:
    sizes = {"q": (2, 8, 4, 16), "k": (2, 16, 2, 16), "v": (2, 16, 2, 24)}
    return {name: torch.zeros(size, dtype=torch.float16) for name, size in sizes.items()} | replaced


HALF = torch.float16
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "length": (
        {"q": torch.zeros(2, 9, 4, 16, dtype=HALF)},
        r"q is \(2, 9, 4, 16\) float16; .* \(2, 8, 4, 16\) float16",
    ),
    "heads": ({"k": torch.zeros(2, 16, 4, 16, dtype=HALF)}, r"k is \(2, 16, 4, 16\) float16; .* \(2, 16, 2, 16\)"),
    "width": ({"v": torch.zeros(2, 16, 2, 16, dtype=HALF)}, r"v is \(2, 16, 2, 16\) float16; .* \(2, 16, 2, 24\)"),
    "rank": ({"q": torch.zeros(8, 4, 16, dtype=HALF)}, r"q is \(8, 4, 16\) float16"),
    "dtype": ({"q": torch.zeros(2, 8, 4, 16)}, r"q is \(2, 8, 4, 16\) float32; this kernel takes .* float16"),
    "stride": ({"k": torch.zeros(2, 16, 16, 2, dtype=HALF).mT}, r"k has the strides .*; expected 1 in the last"),
    "device": (
        {"v": torch.zeros(2, 16, 2, 24, dtype=HALF, device="meta")},
        "q is on cpu, v on meta; expected one device",
    ),
    "zero scale": ({"scale": 0.0}, r"scale=0.0 is not allowed; expected a positive number"),
    "NaN scale": ({"scale": float("nan")}, r"scale=nan is not allowed; expected a positive number"),
    "infinite scale": ({"scale": float("inf")}, r"scale=inf is not allowed"),
    "negative cap": ({"softcap": -1.0}, r"softcap=-1.0 is not allowed; expected a positive number"),
    "true cap": ({"softcap": True}, "softcap=True is not allowed; expected a positive number"),
    "cap in words": ({"softcap": "30"}, "softcap='30' is not allowed; expected a positive number"),
    "true scale": ({"scale": True}, "scale=True is not allowed; expected a positive number"),
    "cap of another shape": ({"softcap": 20.0}, r"softcap=20.0; this kernel was picked without one"),
    "list": ({"k": [1.0]}, r"k is a list; this kernel takes \(2, 16, 2, 16\) float16"),
    "field of the shape": (
        {"causal": True},
        "causal is no option of the call but a field of AttentionShape, and this kernel was picked for causal=False; "
        "pick another with get_kernel",
    ),
    "unknown option": ({"dropout": 0.1}, "dropout is no option of this kernel; allowed: scale, softcap, return_lse"),
    "no GPU": ({}, r"the tensors are on the CPU; expected a GPU \(or TRITON_INTERPRET=1, to check numbers\)"),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=[name.replace(" ", "-") for name in BAD])
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        CALL(**tensors() | changed)


def test_gradients_are_refused() -> None:
    with pytest.raises(NotDifferentiableError, match="q requires gradients, and there is no backward kernel"):
        CALL(**tensors(q=torch.zeros(2, 8, 4, 16, dtype=HALF, requires_grad=True)))


def test_a_missing_cap_is_refused() -> None:
    shape = AttentionShape(batch=1, heads=1, seq_q=8, head_dim=16, dtype="float16", softcap=True)
    call = KERNEL.bind(TINY, shape)
    x = torch.zeros(1, 8, 1, 16, dtype=HALF)
    with pytest.raises(InputMismatchError, match="softcap=None; this kernel was picked with a softcap, pass it"):
        call(x, x, x)


def test_what_the_interpreter_gets_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)
    shape = AttentionShape(batch=1, heads=1, seq_q=8, head_dim=16, dtype="bfloat16")
    call = KERNEL.bind(TINY, shape)
    x = torch.zeros(1, 8, 1, 16, dtype=torch.bfloat16)
    with pytest.raises(
        InputMismatchError, match="bfloat16 on the CPU, which Triton's interpreter gets wrong; expected"
    ):
        call(x, x, x)


@pytest.mark.slow
def test_interpreted_call() -> None:
    assert interpret(call_failure, "cpu") is None


@pytest.mark.gpu
def test_gpu_call() -> None:
    assert call_failure("cuda") is None
