"""``autotune.attention`` over a padded batch picks a kernel of packed sequences, and refuses what does not fit."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import attention, attention_varlen, dispatch
from autotune.errors import InputMismatchError, InvalidShapeError
from autotune.varlen_shape import VarlenShape
from tests import sample
from tests.test_varlen_functional import given as packed

HALF = torch.float16
NUMBERS = ("q_lens", "kv_lens", "kv_starts")
OF_KERNEL = ("seqused_q", "seqused_k", "kv_starts")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An H200 without tables; nothing is launched."""
    yield from sample.serve_untuned(monkeypatch, tmp_path)


@pytest.fixture
def picked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operations and shapes that kernels are bound to, whose calls return what they were given."""
    found: list[Any] = []

    class FakeKernel:
        def __init__(self, operation: str, implementation: str) -> None:
            self._operation = operation

        def bind(self, config: object, shape: object) -> Callable[..., object]:
            found.append((self._operation, shape))
            return call

    def call(*tensors: Any, return_lse: bool, **options: Any) -> object:
        lse = torch.zeros(tensors[0].shape[:-1])
        return ((tensors, options), lse) if return_lse else (tensors, options)

    monkeypatch.setattr(dispatch.kernel, "load_kernel", FakeKernel)
    return found


def given(**replaced: Any) -> dict[str, Any]:
    sizes = {"q": (3, 20, 8, 64), "k": (3, 40, 2, 64), "v": (3, 40, 2, 32)}
    return {name: torch.zeros(size, dtype=HALF) for name, size in sizes.items()} | replaced


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


SIZES: dict[str, Any] = {"batch": 4, "heads": 8, "kv_heads": 2, "head_dim": 64, "head_dim_v": 32, "dtype": "fp16"}
KEYS = VarlenShape(**SIZES, max_seq_q=32, mean_seq_q=32, max_seq_kv=64, mean_seq_kv=32)


@pytest.mark.parametrize("name", NUMBERS)
def test_each_number_reaches_a_kernel_of_packed_sequences(name: str, picked: list[Any]) -> None:
    numbers = ints(3, 4, 5)
    found: Any = attention(**given(**{name: numbers}), scale=2.0)
    tensors, options = found
    assert [each is None for each in tensors] == [False, False, False, True, True]
    expected = dict.fromkeys(OF_KERNEL) | {OF_KERNEL[NUMBERS.index(name)]: numbers}
    assert options == expected | {"scale": 2.0, "softcap": None, "check": False}
    shape = replace(KEYS, mean_seq_q=16, mean_seq_kv=64) if name == "q_lens" else KEYS
    assert picked == [("flash_attention_varlen", shape)]


def test_features_are_of_its_shape(picked: list[Any]) -> None:
    attention(**given(), kv_lens=ints(3, 4, 5), causal=True, window=5, softcap=3.0)
    assert picked[0][1] == replace(KEYS, causal=True, window=5, softcap=True)


def test_without_numbers_it_is_dense(picked: list[Any]) -> None:
    attention(**given())
    assert picked[0][0] == "flash_attention"


def test_the_logarithm_has_heads_before_queries(picked: list[Any]) -> None:
    _, lse = attention(**given(), kv_lens=ints(3, 4, 5), return_lse=True)
    assert lse.shape == (3, 8, 20)


def test_numbers_of_packed_sequences_reach_the_kernel(picked: list[Any]) -> None:
    numbers: dict[str, Any] = {name: ints(1, 2, 3) for name in ("seqused_q", "seqused_k")}
    found: Any = attention_varlen(**packed(**numbers))
    _, options = found
    assert {name: options[name] for name in numbers} == numbers


def test_wider_heads_are_told_to_take_a_mask() -> None:
    wide: dict[str, Any] = {name: torch.zeros(3, 20, 2, 512, dtype=HALF) for name in "qkv"}
    expected = "head_dim=512 is not computed with q_lens, kv_lens; expected 256 at most, or attn_mask in their place"
    with pytest.raises(InvalidShapeError, match=expected):
        attention(**wide, kv_lens=ints(3, 4, 5), q_lens=ints(3, 4, 5))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"kv_lens": ints(3, 4, 5).long()}, r"kv_lens is \(3,\) int64; expected \(3,\) int32, contiguous"),
    "number": ({"q_lens": ints(3, 4)}, r"q_lens is \(2,\) int32; expected \(3,\) int32"),
    "list": ({"kv_starts": [0, 0, 0]}, "kv_starts is a list; expected"),
    "keys": ({"kv_lens": ints(1, 2, 3), "v": torch.zeros(3, 9, 2, 32).half()}, "k has 40 keys and v 9 values"),
    "batch": ({"kv_lens": ints(1, 2, 3), "k": torch.zeros(1, 40, 2, 64).half()}, "q has 3 sequences and k 1"),
    "rank": ({"kv_lens": ints(1, 2, 3), "q": torch.zeros(20, 8, 64).half()}, "q, k and v have 3, 4 and 4 dimensions"),
    "bytes": (
        {name: each.to(torch.float8_e4m3fn) for name, each in given().items()} | {"kv_starts": ints(1, 2, 3)},
        r"kv_starts is given, and q is \(3, 20, 8, 64\) float8_e4m3fn; expected 16 or 32 bits in a padded batch",
    ),
    "no keys": (
        {"kv_lens": ints(0, 0), "k": torch.zeros(3, 0, 2, 64).half(), "v": torch.zeros(3, 0, 2, 32).half()},
        r"kv_lens is \(2,\) int32; expected \(3,\) int32",
    ),
    "no keys, read": (
        {"kv_lens": ints(0, 1, 0), "k": torch.zeros(3, 0, 2, 64).half(), "v": torch.zeros(3, 0, 2, 32).half()},
        r"kv_lens\[1\]=1 is not allowed; expected 0 to 0, its keys",
    ),
    "CPU": ({"kv_lens": ints(1, 2, 3)}, "the tensors are on the CPU; expected a GPU"),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        attention(**given(**changed), check=True)


def test_without_keys_the_output_is_0() -> None:
    nothing = given(k=torch.zeros(3, 0, 2, 64, dtype=HALF), v=torch.zeros(3, 0, 2, 32, dtype=HALF))
    out, lse = attention(**nothing, kv_lens=ints(0, 0, 0), return_lse=True, check=True)
    assert not out.any()
    assert lse.shape == (3, 8, 20)
    assert bool((lse == -torch.inf).all())
