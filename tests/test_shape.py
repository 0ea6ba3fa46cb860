"""Shapes say no in one line, follow their own fields, and lie as far apart as their sizes."""

import math
from dataclasses import FrozenInstanceError, dataclass, replace
from typing import Any

import pytest
import torch

from autotune.dtypes import parse_dtype
from autotune.errors import InvalidShapeError, UnknownNameError, UsageError
from autotune.kernels.flash_attention.reference import visible_keys
from autotune.shape import AttentionShape, Shape

SIZES: dict[str, Any] = {"batch": 2, "heads": 12, "seq_q": 1024, "head_dim": 64}

LENGTHS = ("batch", "heads", "kv_heads", "seq_q", "seq_kv")
BAD: list[tuple[dict[str, Any], list[str]]] = [
    *(({name: value}, [f"{name}={value}", "from 1 to 2147483647"]) for name in LENGTHS for value in (0, -1, 2**31)),
    *(({name: 16.0}, [f"{name}=16.0", "an integer from"]) for name in LENGTHS),
    ({"seq_q": True}, ["seq_q=True", "an integer from"]),
    ({"seq_q": "1024"}, ["seq_q='1024'", "an integer from"]),
    *(
        ({name: value}, [f"{name}={value}", "a multiple of 8 from 8 to 512"])
        for name in ("head_dim", "head_dim_v")
        for value in (0, 4, 520)
    ),
    *(({name: 100}, [f"{name}=100", "a multiple of 8"]) for name in ("head_dim", "head_dim_v")),
    ({"kv_heads": 5}, ["heads=12", "kv_heads=5", "multiple"]),
    ({"kv_heads": 24}, ["heads=12", "kv_heads=24", "multiple"]),
    ({"window": 0}, ["window=0", "from 1"]),
    ({"window": -1}, ["window=-1", "from 1"]),
    ({"seq_len": 4}, ["seq_len is not a field of AttentionShape", "allowed: batch, heads, kv_heads, seq_q, seq_kv"]),
    *(({name: 1}, [f"{name}=1", "True or False"]) for name in ("causal", "softcap")),
]


@pytest.mark.parametrize(("fields", "words"), BAD, ids=lambda item: "-".join(map(str, item)) if item else "")
def test_bad_fields_are_named_with_value_and_what_is_allowed(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidShapeError) as caught:
        AttentionShape(**{**SIZES, **fields})
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_unknown_dtype_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as caught:
        AttentionShape(**SIZES, dtype="int8")
    allowed = "float16 (fp16, half), bfloat16 (bf16), float32 (fp32, float), float8_e4m3fn (fp8, fp8_e4m3)"
    assert str(caught.value) == f"dtype='int8' is unknown; allowed: {allowed}"


def test_errors_of_shapes_are_usage_errors_and_value_errors() -> None:
    assert issubclass(InvalidShapeError, UsageError)
    assert issubclass(UnknownNameError, UsageError)
    assert issubclass(UsageError, ValueError)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16"), ("fp32", "float32"), ("float16", "float16")),
        *(("BF16", "bfloat16"), ("Float32", "float32"), (torch.float32, "float32"), (torch.bfloat16, "bfloat16")),
    ],
    ids=str,
)
def test_names_of_dtypes(name: Any, dtype: str) -> None:
    assert parse_dtype(name) == dtype
    assert AttentionShape(**SIZES, dtype=name) == AttentionShape(**SIZES, dtype=dtype)


def test_fields_follow_those_that_are_given() -> None:
    shape = AttentionShape(**SIZES)
    assert (shape.kv_heads, shape.seq_kv, shape.head_dim_v, shape.dtype) == (12, 1024, 64, "bfloat16")
    given = AttentionShape(**SIZES, kv_heads=4, seq_kv=7, head_dim_v=32)
    assert (given.kv_heads, given.seq_kv, given.head_dim_v, given.group) == (4, 7, 32, 3)


@pytest.mark.parametrize("head_dim", [8, 24, 40, 96, 192, 256])
def test_every_multiple_of_8_is_a_head_dim(head_dim: int) -> None:
    assert AttentionShape(**{**SIZES, "head_dim": head_dim}).head_dim_v == head_dim


def test_shapes_are_frozen_hashable_values() -> None:
    shape = AttentionShape(**SIZES)
    assert {shape: 1}[AttentionShape(**shape.as_dict())] == 1  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        shape.batch = 3  # type: ignore[misc]


def test_columns_are_the_fields_in_order() -> None:
    names = "batch heads kv_heads seq_q seq_kv head_dim head_dim_v dtype causal window softcap attn_mask sinks kv_ends"
    assert list(AttentionShape(**SIZES).as_dict()) == names.split()


def test_operands_are_of_the_family_and_said() -> None:
    shape = AttentionShape(**SIZES, attn_mask="boolean", sinks=True)
    assert str(shape).endswith(", boolean mask, sinks")
    assert shape.distance(AttentionShape(**SIZES)) == math.inf
    assert replace(shape, attn_mask="additive").distance(shape) == math.inf


def test_ends_of_keys_widen_causal_attention_alone() -> None:
    assert str(AttentionShape(**SIZES, causal=True, kv_ends=True)).endswith(", causal, kv_ends")
    with pytest.raises(InvalidShapeError, match="kv_ends=True with causal=False is not allowed; expected causal=True"):
        AttentionShape(**SIZES, kv_ends=True)


@pytest.mark.parametrize("kind", ["bool", "", True, 1])
def test_a_mask_is_boolean_or_additive(kind: Any) -> None:
    with pytest.raises(InvalidShapeError, match=r"attn_mask=.* is not allowed; expected None, 'boolean', 'additive'"):
        AttentionShape(**SIZES, attn_mask=kind)


def test_coordinates_are_logarithms_of_the_sizes() -> None:
    shape = AttentionShape(batch=8, heads=32, kv_heads=4, seq_q=1024, seq_kv=4096, head_dim=64)
    assert shape.coordinates() == (3.0, 3.0, 2.0, 10.0, 12.0)


@pytest.mark.parametrize(
    ("change", "distance"),
    [
        ({}, 0.0),
        ({"batch": 8}, 2.0),
        ({"heads": 24}, 1.0),  # twice the query heads of each KV head
        ({"heads": 24, "kv_heads": 24}, 1.0),
        ({"seq_q": 2048, "seq_kv": 2048}, math.sqrt(2)),
        ({"batch": 16, "seq_kv": 128}, math.sqrt(9 + 9)),
    ],
)
def test_distance(change: dict[str, Any], distance: float) -> None:
    shape = AttentionShape(**SIZES)
    other = AttentionShape(**{**shape.as_dict(), **change})
    assert shape.distance(other) == pytest.approx(distance)
    assert other.distance(shape) == pytest.approx(distance)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16"},
        {"head_dim": 128},
        {"head_dim_v": 128},
        {"causal": True},
        {"window": 128},
        {"softcap": True},
    ],
    ids=str,
)
def test_other_families_are_infinitely_far(change: dict[str, Any]) -> None:
    shape = AttentionShape(**SIZES)
    assert shape.distance(replace(shape, **change)) == math.inf


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seq_q", "seq_kv"), [(5, 5), (2, 6), (6, 2), (1, 4), (4, 1)])
def test_a_window_stays_where_a_query_would_see_a_key_without_it(seq_q: int, seq_kv: int, causal: bool) -> None:
    plain = AttentionShape(batch=1, heads=1, seq_q=seq_q, seq_kv=seq_kv, head_dim=8, causal=causal)
    every = visible_keys(0, seq_q, seq_q, seq_kv, causal=causal, window=None, device=torch.device("cpu"))
    for window in range(1, seq_q + seq_kv + 1):
        seen = visible_keys(0, seq_q, seq_q, seq_kv, causal=causal, window=window, device=torch.device("cpu"))
        is_hidden = bool((every & ~seen).any())
        assert replace(plain, window=window).window == (window if is_hidden else None)
        assert (replace(plain, window=window) == plain) == (not is_hidden)


def test_text_says_what_is_unusual() -> None:
    assert str(AttentionShape(**SIZES)) == "batch 2, 12 heads of 64, seq 1024, bfloat16, full"
    shape = AttentionShape(
        **SIZES, kv_heads=4, seq_kv=7, head_dim_v=32, dtype="fp16", causal=True, window=5, softcap=True
    )
    assert str(shape) == ("batch 2, 12/4 heads of 64/32, seq 1024 x 7, float16, causal, window 5, softcap")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnShape(Shape):
    rows: int
    row_width: int = 4096
    dtype: str = "bfloat16"
    masked: bool = False
    window: int | None = None


def test_a_shape_of_ones_own_is_written_as_ours_are() -> None:
    assert str(OwnShape(rows=2)) == "rows 2, row width 4096, bfloat16"
    assert str(OwnShape(rows=2, masked=True, window=8)) == "rows 2, row width 4096, bfloat16, masked, window 8"
