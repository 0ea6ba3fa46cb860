"""``autotune.attention`` with a mask or sinks picks a kernel that has them, and refuses what does not fit."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import attention, dispatch, get_kernel
from autotune.errors import InputMismatchError, InvalidShapeError, NotDifferentiableError
from autotune.shape import AttentionShape
from tests import sample

HALF = torch.float16
SHAPE = AttentionShape(batch=3, heads=8, kv_heads=2, seq_q=20, seq_kv=40, head_dim=64, head_dim_v=32, dtype="fp16")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An H200 without tables; nothing is launched."""
    yield from sample.serve_untuned(monkeypatch, tmp_path)


@pytest.fixture
def picked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The implementations and shapes that kernels are bound to, whose calls return what they were given."""
    found: list[Any] = []

    class FakeKernel:
        def __init__(self, operation: str, implementation: str) -> None:
            self._title = f"{operation}/{implementation}"

        def bind(self, config: object, shape: object) -> Callable[..., object]:
            found.append((self._title, shape))
            return lambda *tensors, **options: options

    monkeypatch.setattr(dispatch.kernel, "load_kernel", FakeKernel)
    return found


def given(**replaced: Any) -> dict[str, Any]:
    sizes = {"q": (3, 20, 8, 64), "k": (3, 40, 2, 64), "v": (3, 40, 2, 32)}
    return {name: torch.zeros(size, dtype=HALF) for name, size in sizes.items()} | replaced


def mask(*sizes: int, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    return torch.ones(sizes, dtype=dtype)


PICKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "boolean": ({"attn_mask": mask(3, 1, 20, 40)}, {"attn_mask": "boolean"}),
    "of keys": ({"attn_mask": mask(1, 1, 1, 40)}, {"attn_mask": "boolean"}),
    "half": ({"attn_mask": mask(1, 8, 20, 40, dtype=HALF)}, {"attn_mask": "additive"}),
    "float32": ({"attn_mask": mask(3, 8, 20, 40, dtype=torch.float32)}, {"attn_mask": "additive"}),
    "sinks": ({"sinks": torch.zeros(8)}, {"sinks": True}),
    "ends": (
        {"kv_ends": torch.zeros(1, 20, dtype=torch.int32)},
        {"kv_ends": True, "causal": True},
    ),
    "both": (
        {"sinks": torch.zeros(8, dtype=HALF), "attn_mask": mask(1, 1, 20, 40)},
        {"sinks": True, "attn_mask": "boolean"},
    ),
}


@pytest.mark.parametrize(("operands", "fields"), PICKS.values(), ids=PICKS)
def test_operands_reach_a_kernel_that_has_them(
    operands: dict[str, Any], fields: dict[str, Any], picked: list[Any]
) -> None:
    options: Any = attention(**given(), **operands, scale=2.0, causal="kv_ends" in operands)
    assert {name: options[name] for name in operands} == operands
    assert {name: value for name, value in options.items() if name not in operands} == {
        "scale": 2.0,
        "softcap": None,
        "return_lse": False,
    }
    assert picked == [("flash_attention/triton_masked", replace(SHAPE, **fields))]


def test_padding_takes_sinks(picked: list[Any]) -> None:
    sinks, lens = torch.zeros(8), torch.tensor([1, 2, 3], dtype=torch.int32)
    options: Any = attention(**given(), sinks=sinks, kv_lens=lens)
    assert options["sinks"] is sinks
    assert picked[0][0] == "flash_attention_varlen/triton"
    assert picked[0][1].sinks


LENS = torch.tensor([1, 2, 3], dtype=torch.int32)
BYTES = {name: each.to(torch.float8_e4m3fn) for name, each in given().items()}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "two dimensions": ({"attn_mask": mask(20, 40)}, r"attn_mask is \(20, 40\) bool; expected \(3 or 1, 8 or 1, 20 or"),
    "keys": ({"attn_mask": mask(3, 1, 20, 1)}, r"attn_mask is \(3, 1, 20, 1\) bool; expected .* 20 or 1, 40\)"),
    "heads": ({"attn_mask": mask(3, 2, 20, 40)}, r"attn_mask is \(3, 2, 20, 40\) bool"),
    "dtype": ({"attn_mask": mask(1, 1, 20, 40, dtype=torch.int32)}, "int32; expected .* bool or float32 or float16"),
    "bfloat16": ({"attn_mask": mask(1, 1, 20, 40, dtype=torch.bfloat16)}, "attn_mask is .* bfloat16; expected"),
    "list": ({"attn_mask": [[True]]}, "attn_mask is a list; expected a tensor"),
    "place": ({"attn_mask": mask(1, 1, 20, 40).to("meta")}, "q is on cpu, attn_mask on meta; expected one device"),
    "sinks": ({"sinks": torch.zeros(7)}, r"sinks is \(7,\) float32; expected \(8,\) of floating point"),
    "whole sinks": ({"sinks": torch.zeros(8).int()}, r"sinks is \(8,\) int32; expected \(8,\) of floating point"),
    "strided sinks": ({"sinks": torch.zeros(16)[::2]}, r"sinks has the strides \(2,\); expected a contiguous tensor"),
    "ends of keys": ({"kv_ends": LENS[None]}, r"kv_ends is \(1, 3\) int32; expected \(3 or 1, 20\) int32, the last"),
    "long ends": ({"kv_ends": torch.zeros(1, 20).long()}, r"kv_ends is \(1, 20\) int64; expected \(3 or 1, 20\) int32"),
    "strided ends": (
        {"kv_ends": torch.zeros(1, 40, dtype=torch.int32)[:, ::2]},
        r"kv_ends is \(1, 20\) int32 of the strides \(40, 2\); expected .* the last stride 1",
    ),
    "ends beside padding": (
        {"kv_ends": torch.zeros(1, 20, dtype=torch.int32), "kv_lens": LENS, "causal": True},
        "kv_ends and kv_lens are both given; expected one of them",
    ),
    "padding": (
        {"attn_mask": mask(1, 1, 20, 40), "kv_lens": LENS},
        "attn_mask and kv_lens are both given; expected one of them",
    ),
    "bytes": ({**BYTES, "attn_mask": mask(1, 1, 20, 40)}, "attn_mask is given, and q is .* float8_e4m3fn; expected 16"),
    "CPU": ({"attn_mask": mask(1, 1, 20, 40)}, "the tensors are on the CPU; expected a GPU"),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        attention(**given(**changed))


def test_ends_without_causality_are_refused() -> None:
    with pytest.raises(InvalidShapeError, match="kv_ends=True with causal=False is not allowed"):
        attention(**given(), kv_ends=torch.zeros(1, 20, dtype=torch.int32))


def test_a_bias_that_requires_gradients_is_refused() -> None:
    bias = torch.zeros(1, 8, 20, 40, requires_grad=True)
    with pytest.raises(NotDifferentiableError, match="attn_mask requires gradients"):
        attention(**given(), attn_mask=bias)


def test_without_keys_the_logarithm_is_the_sink() -> None:
    nothing = given(k=torch.zeros(3, 0, 2, 64, dtype=HALF), v=torch.zeros(3, 0, 2, 32, dtype=HALF))
    sinks = torch.arange(8.0)
    out, lse = attention(**nothing, sinks=sinks, attn_mask=mask(1, 1, 20, 0), return_lse=True)
    assert not out.any()
    assert torch.equal(lse, sinks[:, None].expand(3, 8, 20))


def test_a_kernel_that_was_picked_for_none_names_the_operand() -> None:
    with pytest.raises(InputMismatchError, match="attn_mask is no option of the call but a field of AttentionShape"):
        get_kernel(SHAPE)(*given().values(), attn_mask=mask(1, 1, 20, 40))


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ({}, "attn_mask is None; this kernel was picked for attn_mask='boolean'"),
        ({"attn_mask": mask(1, 1, 20, 40, dtype=HALF)}, "attn_mask is additive, .*; this kernel was picked for"),
        (
            {"attn_mask": mask(1, 1, 20, 40), "sinks": torch.zeros(8)},
            "sinks is given; this kernel was picked for sinks=False",
        ),
    ],
)
def test_a_kernel_refuses_operands_that_it_was_not_picked_for(operands: dict[str, Any], message: str) -> None:
    kernel = get_kernel(replace(SHAPE, attn_mask="boolean"))
    with pytest.raises(InputMismatchError, match=message):
        kernel(*given().values(), **operands)


def test_no_kernel_of_bytes_has_a_mask() -> None:
    shape = replace(SHAPE, attn_mask="boolean", dtype="fp8")
    with pytest.raises(InvalidShapeError, match="flash_attention/triton_masked computes no float8_e4m3fn"):
        get_kernel(shape)
