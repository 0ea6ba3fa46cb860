"""The shape of packed sequences: its defaults, what it refuses, its text, and how far two lie apart."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.device import NVIDIA_H200
from autotune.errors import InvalidShapeError, UnknownNameError
from autotune.likeness import likeness
from autotune.varlen_shape import VarlenShape

SIZES: dict[str, Any] = {"batch": 16, "heads": 32, "kv_heads": 8, "max_seq_q": 4096, "head_dim": 128}
SHAPE = VarlenShape(**SIZES, mean_seq_q=900, causal=True)


def test_fields_follow_others() -> None:
    even = VarlenShape(batch=4, heads=8, max_seq_q=512, head_dim=64)
    assert (even.kv_heads, even.mean_seq_q, even.max_seq_kv, even.mean_seq_kv, even.head_dim_v) == (
        8,
        512,
        512,
        512,
        64,
    )
    assert (SHAPE.max_seq_kv, SHAPE.mean_seq_kv) == (4096, 900)
    crossed = VarlenShape(**SIZES, mean_seq_q=900, max_seq_kv=77)
    assert crossed.mean_seq_kv == 77
    assert VarlenShape(**SIZES, dtype=torch.float16).dtype == "float16"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 0}, "batch=0 is not allowed; expected an integer from 1 to"),
        ({"max_seq_q": 2**30 + 1}, "max_seq_q=1073741825 is not allowed; expected an integer from 1 to 1073741824"),
        ({"mean_seq_q": 4097}, "mean_seq_q=4097 is not allowed; expected an integer from 1 to 4096"),
        ({"mean_seq_kv": 0}, "mean_seq_kv=0 is not allowed"),
        ({"max_seq_kv": 10, "mean_seq_kv": 11}, "mean_seq_kv=11 is not allowed; expected an integer from 1 to 10"),
        ({"heads": 30}, "heads=30 is not a multiple of kv_heads=8"),
        ({"head_dim": 512}, "head_dim=512 is not allowed; expected a multiple of 8 from 8 to 256"),
        ({"head_dim_v": 4}, "head_dim_v=4 is not allowed"),
        ({"window": 0}, "window=0 is not allowed"),
        ({"sinks": 1}, "sinks=1 is not allowed; expected True or False"),
        ({"alibi": True}, "alibi is not a field of VarlenShape; allowed: batch, heads"),
    ],
)
def test_bad_fields_are_refused_by_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidShapeError, match=message):
        VarlenShape(**{**SIZES, **changed})


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="dtype='float8_e4m3fn'"):
        VarlenShape(**SIZES, dtype="float8_e4m3fn")


def test_its_text_names_all_that_matters() -> None:
    assert str(SHAPE) == "16 packed, 32/8 heads of 128, seq up to 4096 (mean 900), bfloat16, causal"
    crossed = VarlenShape(**{**SIZES, "kv_heads": 32}, max_seq_kv=77, head_dim_v=64, window=9, softcap=True, sinks=True)
    expected = "16 packed, 32 heads of 128/64, seq up to 4096 x 77, bfloat16, full, window 9, softcap, sinks"
    assert str(crossed) == expected


def test_even_sequences_are_far_from_uneven_ones() -> None:
    even = replace(SHAPE, max_seq_q=900, max_seq_kv=900)
    assert even.is_even
    assert not SHAPE.is_even
    assert replace(SHAPE, batch=1).is_even
    assert even.distance(SHAPE) > 3.0
    assert even.distance(replace(even, batch=32)) == 1.0
    assert even.distance(replace(even, causal=False)) == math.inf
    assert likeness(even, NVIDIA_H200).distance(likeness(SHAPE, NVIDIA_H200)) > 3.0
    assert likeness(SHAPE, NVIDIA_H200).distance(likeness(replace(SHAPE, dtype="fp16"), NVIDIA_H200)) == 1.0
