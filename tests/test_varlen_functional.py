"""``autotune.attention_varlen`` picks by its tensors and hints, and refuses what does not fit."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import attention_varlen, dispatch
from autotune.errors import InputMismatchError, InvalidShapeError, UnknownNameError
from autotune.varlen_shape import VarlenShape
from autotune.workload import operation_for
from tests import sample

HALF = torch.float16


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An H200 without tables; nothing is launched."""
    yield from sample.serve_untuned(monkeypatch, tmp_path)


@pytest.fixture
def picked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes that kernels are bound to, whose calls return what they were given."""
    found: list[Any] = []

    class FakeKernel:
        def __init__(self, operation: str, implementation: str) -> None:
            assert (operation, implementation) == ("flash_attention_varlen", "triton")

        def bind(self, config: object, shape: object) -> Callable[..., object]:
            found.append(shape)
            return lambda *tensors, **options: (tensors, options)

    monkeypatch.setattr(dispatch.kernel, "load_kernel", FakeKernel)
    return found


def given(tokens: int = 90, keys: int = 120, **replaced: Any) -> dict[str, Any]:
    return {
        "q": torch.zeros(tokens, 8, 64, dtype=HALF),
        "k": torch.zeros(keys, 2, 64, dtype=HALF),
        "v": torch.zeros(keys, 2, 32, dtype=HALF),
        "cu_seqlens_q": torch.zeros(4, dtype=torch.int32),
        "cu_seqlens_k": torch.zeros(4, dtype=torch.int32),
        "max_seqlen_q": 60,
        "max_seqlen_k": 64,
    } | replaced


SIZES: dict[str, Any] = {"batch": 4, "heads": 8, "kv_heads": 2, "head_dim": 64, "head_dim_v": 32, "dtype": "fp16"}
FIRST = VarlenShape(**SIZES, max_seq_q=64, mean_seq_q=32, max_seq_kv=64, mean_seq_kv=40)


def test_the_pick_is_made_once_for_batches_alike(picked: list[Any]) -> None:
    for tokens in (88, 90, 84):
        tensors, options = attention_varlen(**given(tokens), scale=2.0)
    assert len(tensors) == 5
    assert options == {"scale": 2.0, "softcap": None, "sinks": None, "return_lse": False, "check": False}
    assert picked == [FIRST]
    attention_varlen(**given(), causal=True, window=5, softcap=3.0, sinks=torch.zeros(8))
    assert picked[-1] == replace(FIRST, causal=True, window=5, softcap=True, sinks=True)


@pytest.mark.parametrize(
    ("tokens", "longest", "expected"),
    [
        (0, 0, (1, 1)),
        (3, 1, (1, 1)),
        (300, 100, (128, 128)),  # all alike stay alike
        (150, 100, (128, 64)),
        (101, 100, (128, 48)),
        (3 * 4096, 4096, (4096, 4096)),
        (3000, 4096, (4096, 1024)),
    ],
)
def test_lengths_are_rounded_and_stay_as_even(
    tokens: int, longest: int, expected: tuple[int, int], picked: list[Any]
) -> None:
    attention_varlen(**given(tokens, max_seqlen_q=longest))
    assert (picked[0].max_seq_q, picked[0].mean_seq_q) == expected


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rank": (
        {"q": torch.zeros(1, 9, 8, 64)},
        InputMismatchError,
        r"have 4, 3, 3, 1 and 1 dimensions; expected packed \[T, H, D\]",
    ),
    "heads": ({"q": torch.zeros(90, 7, 64).half()}, InvalidShapeError, "heads=7 is not a multiple of kv_heads=2"),
    "type": ({"q": torch.zeros(90, 8, 64).double()}, UnknownNameError, "dtype='float64'"),
    "value type": ({"v": torch.zeros(120, 2, 32)}, InputMismatchError, "v is .* float32"),
    "keys": ({"v": torch.zeros(9, 2, 32).half()}, InputMismatchError, "k has 120 keys and v 9 values"),
    "window": ({"window": 0}, InvalidShapeError, "window=0 is not allowed"),
    "causal": ({"causal": 1}, InvalidShapeError, "causal=1 is not allowed; expected True or False"),
    "no number": ({"max_seqlen_q": 60.0}, InputMismatchError, "max_seqlen_q=60.0 is not allowed; expected an integer"),
    "negative": (
        {"max_seqlen_k": -1},
        InputMismatchError,
        "max_seqlen_k=-1 is not allowed; expected an integer from 0",
    ),
    "too short": (
        {"max_seqlen_k": 39},
        InputMismatchError,
        "max_seqlen_k=39 is not allowed; expected 40 at least, the mean of 120 rows of k in 3 sequences",
    ),
    "no longest": ({"max_seqlen_q": 0}, InputMismatchError, "max_seqlen_q=0 is not allowed; expected 30 at least"),
    "CPU": ({}, InputMismatchError, "the tensors are on the CPU; expected a GPU"),
}


@pytest.mark.parametrize(("changed", "error", "message"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attention_varlen(**given(**changed))


def test_a_longer_sequence_than_the_longest_is_found_on_demand(picked: list[Any]) -> None:
    offsets = torch.tensor([0, 10, 75, 90], dtype=torch.int32)
    attention_varlen(**given(cu_seqlens_q=offsets))
    with pytest.raises(InputMismatchError, match="max_seqlen_q=60 is not allowed; expected 65 at least, the length of"):
        attention_varlen(**given(cu_seqlens_q=offsets), check=True)
    for wrong in ([0, 80, 70, 90], [0, 10, 75, 91], [1, 10, 75, 90]):  # no lengths: the kernel says so, not this check
        attention_varlen(**given(cu_seqlens_q=torch.tensor(wrong, dtype=torch.int32)), check=True)


def test_its_shapes_are_of_one_operation() -> None:
    assert operation_for(FIRST).name == "flash_attention_varlen"
